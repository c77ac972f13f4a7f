package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

func (b *bench) inboxes(ctx context.Context) (_ []row, err error) {
	empty := series{id: "inbox-empty", what: "once.Consumer as it comes, nothing remembered, " + b.kinds[0], unit: perSecond}
	none, err := b.newInbox(ctx, 0, inOrder)
	if err != nil {
		return nil, err
	}
	defer closing(none, &err)
	full := series{id: "inbox-full", what: fmt.Sprintf("the same with %d ids remembered, by time (UUIDv7)", b.remembered), unit: perSecond}
	ordered, err := b.newInbox(ctx, b.remembered, inOrder)
	if err != nil {
		return nil, err
	}
	defer closing(ordered, &err)
	random := series{id: "inbox-random", what: fmt.Sprintf("the same with %d ids at random (UUIDv4)", b.remembered), unit: perSecond}
	scattered, err := b.newInbox(ctx, b.remembered, atRandom)
	if err != nil {
		return nil, err
	}
	defer closing(scattered, &err)

	err = b.turns(
		ctx,
		single(&empty, func(ctx context.Context) (float64, error) { return none.consume(ctx, b.consume) }),
		single(&full, func(ctx context.Context) (float64, error) { return ordered.consume(ctx, b.consume) }),
		single(&random, func(ctx context.Context) (float64, error) { return scattered.consume(ctx, b.consume) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{empty.row(), full.against(empty, 0.85), random.against(empty, 0)}, nil
}

// kindOfID generates ids of one kind. The field past is the SQL expression for the ids
// that filledInbox.fill inserts before the measurement. The field next is a function
// that returns the id of a new message.
type kindOfID struct {
	past string
	next func() string
}

var (
	// The times in the ids of past are one millisecond apart. The last of these times is the
	// current time.
	inOrder = kindOfID{
		past: `substr(ms, 1, 8) || '-' || substr(ms, 9) ||
			'-7' || substr(noise, 1, 3) || '-8' || substr(noise, 4, 3) || '-' || substr(noise, 7, 12)`,
		next: func() string { return uuid.Must(uuid.NewV7()).String() },
	}
	atRandom = kindOfID{past: `gen_random_uuid()::text`, next: uuid.NewString}
)

// filledInbox is a scene whose inbox contains ids before the measurement.
type filledInbox struct {
	*scene

	kind       kindOfID
	remembered int
	fresh      bool // the inbox is emptied before each run
}

func (b *bench) newInbox(ctx context.Context, remembered int, kind kindOfID) (_ *filledInbox, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return nil, err
	}
	i := &filledInbox{scene: s, kind: kind, remembered: remembered, fresh: remembered == 0}
	if err := i.fill(ctx); err != nil {
		closing(i, &err)
		return nil, err
	}
	return i, nil
}

// fill inserts the ids. It creates the primary key after the rows, which is faster. The
// index is then like one that has grown over time.
func (i *filledInbox) fill(ctx context.Context) error {
	if err := i.exec(ctx, `ALTER TABLE once_inbox DROP CONSTRAINT once_inbox_pkey`); err != nil {
		return err
	}
	_, err := i.db.ExecContext(ctx, `
		INSERT INTO once_inbox (message_id, consumer, processed_at, digest)
		SELECT `+i.kind.past+`, $2, now() - ($1 - n) * interval '1 millisecond', sha256(n::text::bytea)
		FROM generate_series(1, $1::bigint) AS n,
		     LATERAL (SELECT lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - $1 + n), 12, '0') AS ms, md5(n::text) AS noise) AS parts`,
		i.remembered, consumerName)
	if err != nil {
		return err
	}
	return i.exec(ctx, `ALTER TABLE once_inbox ADD PRIMARY KEY (message_id, consumer)`, `VACUUM ANALYZE once_inbox`)
}

// messages returns count new messages. Their ids are of the same kind as the ids in the
// inbox.
func (i *filledInbox) messages(count int) []*message.Message {
	all := newMessages(count)
	for _, msg := range all {
		msg.UUID = i.kind.next()
	}
	return all
}

func (i *filledInbox) consume(ctx context.Context, count int) (float64, error) {
	if err := i.exec(ctx, `TRUNCATE orders`); err != nil {
		return 0, err
	}
	if i.fresh {
		if err := i.exec(ctx, `TRUNCATE once_inbox`); err != nil {
			return 0, err
		}
		i.remembered = 0
	}
	took, err := i.scene.consume(ctx, i.messages(count), chain(rabbit.SubscriberConfig{}))
	if err != nil {
		return 0, err
	}
	i.remembered += count
	return rate(count, took), i.hasEffects(ctx, effects{orders: count, inbox: i.remembered})
}

// storeRaw measures how fast plain rows are inserted into a table whose primary key is
// the id. A single statement inserts storedTogether rows.
func (b *bench) storeRaw(ctx context.Context, messages int) (_ float64, err error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return 0, err
	}
	defer closing(db, &err)
	if _, err := db.ExecContext(ctx, `CREATE TABLE received (message_id text PRIMARY KEY, envelope bytea NOT NULL)`); err != nil {
		return 0, err
	}
	var query strings.Builder
	query.WriteString(`INSERT INTO received (message_id, envelope) VALUES ($1, $2)`)
	for n := 1; n < storedTogether; n++ {
		fmt.Fprintf(&query, `, ($%d, $%d)`, 2*n+1, 2*n+2)
	}
	insert := query.String()
	msgs := newMessages(messages / storedTogether * storedTogether)
	start := time.Now()
	for batch := range slices.Chunk(msgs, storedTogether) {
		args := make([]any, 0, 2*len(batch))
		for _, msg := range batch {
			args = append(args, msg.UUID, parkedrows.Encode(msg))
		}
		if _, err := db.ExecContext(ctx, insert, args...); err != nil {
			return 0, err
		}
	}
	return rate(len(msgs), time.Since(start)), nil
}

func (b *bench) storeInbox(ctx context.Context, messages int) (_ float64, err error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return 0, err
	}
	defer closing(db, &err)
	if err := schema.Up(ctx, db.DB, schema.Config{}); err != nil {
		return 0, err
	}
	storage, err := durable.New(db.DB, durable.Config{BatchSize: storedTogether})
	if err != nil {
		return 0, err
	}
	msgs := newMessages(messages)
	sub := storage.Subscriber(&ready{msgs: msgs})
	// No goroutine handles the stored messages.
	nobody := parkedrows.Subscription{Consumer: consumerName, Wake: func() {}, Store: func(parkedrows.Stored) {}}
	start := time.Now()
	out, err := sub.Subscribe(parkedrows.WithSubscription(ctx, nobody), "topic")
	if err != nil {
		return 0, err
	}
	for range out { // ends when all messages are acked
	}
	took := time.Since(start)
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
		default:
			return 0, fmt.Errorf("a message was not stored: %w", ctx.Err())
		}
	}
	return rate(messages, took), sub.Close()
}

// ready is a subscriber that delivers messages from memory.
type ready struct{ msgs []*message.Message }

func (r *ready) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for _, msg := range r.msgs {
			select {
			case out <- msg:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (r *ready) Close() error { return nil }
