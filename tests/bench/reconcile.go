package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/schema"
)

const (
	lostIDs      = 5
	neverSentIDs = 3

	reconciledTopic = "orders.placed"
)

// reconciliations measures how long it takes to find the few ids that differ between the
// sent log of one database and the inbox of another database. It also measures the size
// of the files that are exchanged for this.
func (b *bench) reconciliations(ctx context.Context) (_ []row, err error) {
	n := b.compared
	took := series{id: "reconcile", what: fmt.Sprintf("%d sent ids are compared with the inbox, 8 differ", n), unit: milliseconds}
	size := series{id: "reconcile-size", what: "the same: size of the files", unit: megabytes}
	sender, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return nil, err
	}
	defer closing(sender, &err)
	receiver, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return nil, err
	}
	defer closing(receiver, &err)
	start := time.Now().Add(-27 * time.Hour).UTC().Truncate(time.Hour)
	if err := errors.Join(fillSent(ctx, sender.DB, n, start), fillHandled(ctx, receiver.DB, n, start)); err != nil {
		return nil, err
	}
	err = b.turns(ctx, measurement{[]*series{&took, &size}, func(ctx context.Context) ([]float64, error) {
		return reconciled(ctx, sender.DB, receiver.DB, n)
	}})
	if err != nil {
		return nil, err
	}
	const most, seconds = 10_000_000, 60
	return []row{took.atMost(max(2, seconds*float64(n)/most) * 1000), size.atMost(1)}, nil
}

// reconciled returns how many milliseconds an exchange of files takes, and the size of the files in
// megabytes.
func reconciled(ctx context.Context, from, to *sql.DB, n int) ([]float64, error) {
	s, err := reconcile.NewSender(from, reconcile.SenderConfig{Topics: []string{reconciledTopic}})
	if err != nil {
		return []float64{0, 0}, err
	}
	r, err := reconcile.NewReceiver(to, reconcile.ReceiverConfig{Consumers: []string{consumerName}})
	if err != nil {
		return []float64{0, 0}, err
	}
	began, size := time.Now(), 0
	var reports []reconcile.Report
	file, err := s.Question(ctx)
	size += len(file)
	if err == nil {
		file, err = r.Answer(ctx, file)
		size += len(file)
	}
	if err == nil {
		reports, err = s.Read(ctx, file)
	}
	if err != nil {
		return []float64{0, 0}, err
	}
	took := time.Since(began)
	if got := reports[0]; got.Sent != n-neverSentIDs || len(got.Missing) != lostIDs || len(got.Phantoms) != neverSentIDs {
		return []float64{0, 0}, fmt.Errorf("%d were compared, %d missing, %d never sent", got.Sent, len(got.Missing), len(got.Phantoms))
	}
	return []float64{float64(took) / float64(time.Millisecond), float64(size) / (1 << 20)}, nil
}

// idsOfADay is an SQL query that returns $1 rows. The times of the rows are spread over
// the day that begins at $2, and their ids are in the order of the times.
const idsOfADay = `(SELECT n, $2::timestamptz + n * interval '1 day' / $1 AS at,
	substr(ms, 1, 8) || '-' || substr(ms, 9) || '-7' || substr(noise, 1, 3) || '-8' || substr(noise, 4, 3) || '-' || substr(noise, 7, 12) AS id
	FROM generate_series(1, $1::bigint) AS n,
	     LATERAL (SELECT lpad(to_hex((extract(epoch FROM $2::timestamptz) * 1000)::bigint + n * 86400000 / $1), 12, '0') AS ms,
	                     md5(n::text) AS noise) AS parts) AS ids`

// fillSent fills the sent log, except for the ids that count as never sent. An
// additional first row makes the log begin an hour before all other rows.
func fillSent(ctx context.Context, db *sql.DB, n int, start time.Time) error {
	err := schema.Up(ctx, db, schema.Config{})
	for _, step := range []struct {
		query string
		args  []any
	}{
		{
			`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		  VALUES (1, 'first', $1, '', '{}', $2, $2)`, []any{reconciledTopic, start.Add(-time.Hour)},
		},
		{
			`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		  SELECT n, id, $3, convert_to(repeat('x', 200), 'UTF8'), '{}', at, at FROM ` + idsOfADay + ` WHERE n % ($1 / 3) <> 7`,
			[]any{n, start, reconciledTopic},
		},
		{`VACUUM ANALYZE once_outbox_sent`, nil},
	} {
		if err == nil {
			_, err = db.ExecContext(ctx, step.query, step.args...)
		}
	}
	return err
}

// fillHandled fills the inbox, except for the ids that count as lost.
func fillHandled(ctx context.Context, db *sql.DB, n int, start time.Time) error {
	err := schema.Up(ctx, db, schema.Config{})
	for _, step := range []struct {
		query string
		args  []any
	}{
		{
			`INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('first', $1, $2, '')`,
			[]any{consumerName, start.Add(-time.Hour)},
		},
		{
			`INSERT INTO once_inbox (message_id, consumer, processed_at, digest)
		  SELECT id, $3, at + interval '1 second', sha256(''::bytea) FROM ` + idsOfADay + ` WHERE n % ($1 / 5) <> 9`,
			[]any{n, start, consumerName},
		},
		{`VACUUM ANALYZE once_inbox`, nil},
	} {
		if err == nil {
			_, err = db.ExecContext(ctx, step.query, step.args...)
		}
	}
	return err
}
