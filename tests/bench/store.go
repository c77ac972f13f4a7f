package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

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
			args = append(args, msg.UUID, parked.Encode(msg))
		}
		if _, err := db.ExecContext(ctx, insert, args...); err != nil {
			return 0, err
		}
	}
	return rate(len(msgs), time.Since(start)), nil
}

// storeInbox measures how fast a durable consumer stores and acks messages that are
// already in memory.
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
	nobody := parked.Subscription{Consumer: consumerName, Wake: func() {}, Store: func(parked.Stored) {}}
	start := time.Now()
	out, err := sub.Subscribe(parked.WithSubscription(ctx, nobody), "topic")
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
