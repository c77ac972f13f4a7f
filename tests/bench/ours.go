package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// measureOurs drains an outbox through the forwarder and rabbit's Publisher,
// from the start of the forwarder until the outbox is empty.
func measureOurs(ctx context.Context, o options, b *broker, messages int) (rate float64, err error) {
	db, drop, err := freshDatabase(ctx, o)
	if err != nil {
		return 0, err
	}
	defer drop()
	if err := schema.Up(ctx, db, schema.Config{}); err != nil {
		return 0, err
	}
	if err := fill(ctx, db, b.name, messages); err != nil {
		return 0, err
	}
	publisher, err := rabbit.NewPublisher(b.config(), rabbit.PublisherConfig{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, publisher.Close()) }()
	if err := publisher.Publish(b.name, newMessage()); err != nil { // so that it is connected
		return 0, err
	}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{})
	if err != nil {
		return 0, err
	}

	start := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(ctx) }()
	if err := awaitEmpty(ctx, db, ended); err != nil {
		return 0, err
	}
	took := time.Since(start)
	if err := fwd.Close(); err != nil {
		return 0, err
	}
	return float64(messages) / took.Seconds(), <-ended
}

func fill(ctx context.Context, db *sql.DB, topic string, messages int) error {
	const batch = 1000
	for done := 0; done < messages; done += batch {
		err := outbox.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
			msgs := make([]*message.Message, min(batch, messages-done))
			for i := range msgs {
				msgs[i] = newMessage()
			}
			return events.Publish(topic, msgs...)
		})
		if err != nil {
			return err
		}
	}
	for _, settle := range []string{`VACUUM ANALYZE once_outbox`, `CHECKPOINT`} {
		if _, err := db.ExecContext(ctx, settle); err != nil {
			return err
		}
	}
	return nil
}

func awaitEmpty(ctx context.Context, db *sql.DB, ended <-chan error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var waiting bool
		if err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM once_outbox)`).Scan(&waiting); err != nil {
			return err
		}
		if !waiting {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			return errors.Join(errors.New("the forwarder ended"), err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
