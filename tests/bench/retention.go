package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

const (
	claimers   = 4
	claimPause = 5 * time.Millisecond
)

// retentions measures how long the sweep takes to delete the ids of one day, and how
// much this slows down messages that are handled at the same time.
func (b *bench) retentions(ctx context.Context) ([]row, error) {
	ids, few := b.remembered/2, b.remembered/100
	var (
		byRow = series{id: "retention-rows", what: fmt.Sprintf("%d ids are forgotten row by row", few), unit: milliseconds}
		byDay = series{id: "retention-day", what: fmt.Sprintf("a day of %d ids is forgotten", ids), unit: milliseconds}
		p99   = series{id: "retention-alone-p99", what: "messages are claimed, nothing is forgotten: p99", unit: milliseconds}
		most  = series{id: "retention-alone-max", what: "the same: the longest", unit: milliseconds}
		p99To = series{id: "retention-claims-p99", what: "messages are claimed while the day is forgotten: p99", unit: milliseconds}
		longe = series{id: "retention-claims-max", what: "the same: the longest", unit: milliseconds}
	)
	err := b.turns(
		ctx,
		single(&byRow, func(ctx context.Context) (float64, error) {
			figures, err := b.retention(ctx, schema.Config{}, few)
			return figures[0], err
		}),
		measurement{[]*series{&byDay, &p99, &most, &p99To, &longe}, func(ctx context.Context) ([]float64, error) {
			return b.retention(ctx, schema.Config{Inbox: schema.ByDay}, ids)
		}},
	)
	if err != nil {
		return nil, err
	}
	return []row{byRow.row(), byDay.atMost(1000), p99.row(), most.row(), p99To.row(), longe.atMost(100)}, nil
}

// retention returns five durations in milliseconds: the sweep of one day, the 99th
// percentile and the maximum of the claims before the sweep, and the 99th percentile and
// the maximum of the claims during the sweep.
func (b *bench) retention(ctx context.Context, tables schema.Config, ids int) (figures []float64, err error) {
	figures = make([]float64, 5)
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return figures, err
	}
	defer closing(db, &err)
	old := "once_inbox"
	if tables.Inbox == schema.ByDay {
		old = "once_inbox_" + dayAgo(40).Format("20060102")
	}
	inbox, err := dedup.New(db.DB, dedup.Config{Schema: tables, Consumer: consumerName})
	if err == nil {
		err = schema.Up(ctx, db.DB, tables)
	}
	if err == nil { // the first sweep creates the partitions of the coming days, which must not be measured
		_, err = inbox.Sweep(ctx)
	}
	if err == nil {
		err = fillDay(ctx, db.DB, tables, old, ids)
	}
	if err != nil {
		return figures, err
	}
	claiming, stop := context.WithCancel(ctx)
	var (
		working sync.WaitGroup
		claims  [claimers][]claim
		errs    [claimers]error
	)
	for n := range claimers {
		working.Go(func() { claims[n], errs[n] = claimOn(claiming, inbox) })
	}
	began := time.Now().Add(time.Second) // in the first second connections are opened
	err = wait(ctx, began.Add(b.delivering))
	start := time.Now()
	for left := true; left && err == nil; {
		if _, err = inbox.Sweep(ctx); err == nil {
			err = db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL AND $1 <> 'once_inbox'`, old).Scan(&left)
		}
	}
	end := time.Now()
	stop()
	working.Wait()
	if err = errors.Join(append(errs[:], err)...); err != nil {
		return figures, err
	}
	var done, stale int
	err = db.QueryRowContext(ctx, `
		SELECT COUNT(*), COUNT(*) FILTER (WHERE processed_at < now() - interval '1 day') FROM once_inbox`).Scan(&done, &stale)
	all := slices.Concat(claims[:]...)
	if err == nil && (done != len(all) || stale > 0) {
		err = fmt.Errorf("the inbox contains %d ids of %d claims, and %d old ids", done, len(all), stale)
	}
	figures[0] = float64(end.Sub(start)) / float64(time.Millisecond)
	copy(figures[1:], longest(all, began, start))
	copy(figures[3:], longest(all, start, end))
	return figures, err
}

// claim records when the handling of a message began and ended.
type claim struct{ began, ended time.Time }

// longest returns the 99th percentile and the maximum of the claims that overlap a
// period, in milliseconds.
func longest(claims []claim, from, to time.Time) []float64 {
	var took []float64
	for _, c := range claims {
		if c.ended.After(from) && c.began.Before(to) {
			took = append(took, float64(c.ended.Sub(c.began))/float64(time.Millisecond))
		}
	}
	if len(took) == 0 {
		return []float64{0, 0}
	}
	slices.Sort(took)
	return []float64{quantile(took, 0.99), took[len(took)-1]}
}

func claimOn(ctx context.Context, inbox *dedup.Inbox) (claims []claim, err error) {
	handle := inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		return nil, business(msg.Context(), tx)
	})
	for ctx.Err() == nil {
		c := claim{began: time.Now()}
		if _, err := handle(outbox.NewMessage(nil)); err != nil {
			return claims, err
		}
		c.ended = time.Now()
		claims = append(claims, c)
		_ = wait(ctx, time.Now().Add(claimPause))
	}
	return claims, nil
}

func dayAgo(days int) time.Time { return time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -days) }

// fillDay inserts the ids of one day, 40 days ago. With the layout ByDay it first
// creates the partitions of that day and of today. The indexes are created after the
// rows.
func fillDay(ctx context.Context, db *sql.DB, tables schema.Config, old string, ids int) error {
	exec := func(query string, args ...any) error {
		_, err := db.ExecContext(ctx, query, args...)
		return err
	}
	attach := func(table string, day time.Time) error {
		first := func(t time.Time) string { ms := fmt.Sprintf("%012x", t.UnixMilli()); return ms[:8] + "-" + ms[8:] }
		return errors.Join(
			exec(`ALTER TABLE `+table+` ADD PRIMARY KEY (message_id, consumer)`),
			exec(`CREATE INDEX ON `+table+` (processed_at)`),
			exec(fmt.Sprintf(`ALTER TABLE once_inbox ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')`,
				table, first(day), first(day.AddDate(0, 0, 1)))))
	}
	err := exec(createOrders)
	if tables.Inbox == schema.ByDay {
		today := "once_inbox_" + dayAgo(0).Format("20060102")
		err = errors.Join(err,
			exec(`CREATE TABLE `+today+` (LIKE once_inbox INCLUDING DEFAULTS)`), attach(today, dayAgo(0)),
			exec(`CREATE TABLE `+old+` (LIKE once_inbox INCLUDING DEFAULTS)`))
	}
	err = errors.Join(err, exec(`
		INSERT INTO `+old+` (message_id, consumer, processed_at, digest)
		SELECT substr(ms, 1, 8) || '-' || substr(ms, 9) || '-7' || substr(noise, 1, 3) || '-8' || substr(noise, 4, 3) || '-' ||
		       substr(noise, 7, 12), $2, to_timestamp($3::bigint / 1000.0) + n * interval '1 day' / $1, sha256(n::text::bytea)
		FROM generate_series(1, $1::bigint) AS n,
		     LATERAL (SELECT lpad(to_hex($3::bigint + (n - 1) * 86400000 / $1), 12, '0') AS ms, md5(n::text) AS noise) AS parts`,
		ids, consumerName, dayAgo(40).UnixMilli()))
	if err == nil && tables.Inbox == schema.ByDay {
		err = attach(old, dayAgo(40))
	}
	return errors.Join(err, exec(`VACUUM ANALYZE `+old), exec(`CHECKPOINT`))
}

// snapshots measures whether forwarding slows down while an open snapshot prevents
// PostgreSQL from removing dead rows.
func (b *bench) snapshots(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	none := series{
		id: "snapshot-none", unit: perSecond,
		what: fmt.Sprintf("forwarder beside a stream of inserts for %v, %s", b.baseline, kind),
	}
	held := series{
		id: "snapshot-held", unit: perSecond,
		what: fmt.Sprintf("the same for %v, while another session holds a snapshot", b.hold),
	}
	err := b.turns(
		ctx,
		single(&none, func(ctx context.Context) (float64, error) { return b.streamed(ctx, kind, b.baseline, false) }),
		single(&held, func(ctx context.Context) (float64, error) { return b.streamed(ctx, kind, b.hold, true) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), held.against(none, 0.8)}, nil
}

// streamed measures how many messages per second are confirmed during a period. Messages
// are written during the whole period, so that some always wait in the outbox. If
// hold is true, another transaction keeps a snapshot open.
func (b *bench) streamed(ctx context.Context, kind string, period time.Duration, hold bool) (_ float64, err error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fill(ctx, b.ahead, 0); err != nil {
		return 0, err
	}
	f, err := s.forward(b.ahead / 2)
	if err != nil {
		return 0, err
	}
	defer closing(f, &err)
	stream := s.keepAhead(ctx, b.ahead, f.publisher.confirmed.Load)
	defer closing(stream, &err)
	f.start(ctx)
	if err := f.await(ctx); err != nil { // wait until messages flow
		return 0, err
	}
	if hold {
		tx, err := s.holdSnapshot(ctx)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback() //nolint:errcheck // it has written nothing
	}

	before, start := f.publisher.confirmed.Load(), time.Now()
	end := time.NewTimer(period)
	defer end.Stop()
	select {
	case <-end.C:
	case <-stream.ended:
		return 0, errors.New("the stream of inserts ended")
	case err := <-f.ended:
		f.ended <- err
		return 0, errors.Join(errors.New("the forwarder ended"), err)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	confirmed, took := f.publisher.confirmed.Load(), time.Since(start)

	if err := stream.Close(); err != nil {
		return 0, err
	}
	if stream.starved > 0 {
		fmt.Fprintf(b.progress, "the outbox ran empty %d times: inserting was what limited the rate\n", stream.starved)
	}
	return rate(int(confirmed-before), took), s.queue.awaitMessages(ctx, int(confirmed))
}

func (s *scene) holdSnapshot(ctx context.Context) (*sql.Tx, error) {
	tx, err := s.db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return nil, err
	}
	var count int
	if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM once_slots`).Scan(&count); err != nil { // takes the snapshot
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}
