package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// work commits the given number of events, one after the other. It forwards each event,
// and waits until this process or another one has handled the event. While work runs,
// the test migrates the tables with a newer build.
func work(ctx context.Context, db *sql.DB, config schema.Config, events int) error {
	const topic = "events"
	logger := watermill.NopLogger{}
	transport, err := embedded.New(db, embedded.Config{Schema: config})
	if err != nil {
		return err
	}
	forward, err := forwarder.New(db, transport, forwarder.Config{Schema: config, Logger: logger, PollMax: 50 * time.Millisecond})
	if err != nil {
		return err
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: config, Logger: logger})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, logger)
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "worker", topic, transport.Subscriber(),
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, msg.UUID)
			return nil, err
		})
	box, err := outbox.New(outbox.Config{Schema: config})
	if err != nil {
		return err
	}

	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 3)
	go func() { ended <- router.Run(running) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return err
	}
	go func() { ended <- forward.Run(running) }()
	go func() { ended <- consumer.Run(running) }()
	for range events {
		msg := outbox.NewMessage(nil)
		err := box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error { return events.Publish(topic, msg) })
		if err == nil {
			err = handled(ctx, db, msg.UUID, ended)
		}
		if err != nil {
			return err
		}
	}
	stop()
	return errors.Join(<-ended, <-ended, <-ended)
}

// handled waits until the effect of an event is in the database. It returns an error if a
// part of the process ends before.
func handled(ctx context.Context, db *sql.DB, id string, ended <-chan error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var n int
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM effects WHERE message_id = $1`, id).Scan(&n); err != nil || n > 0 {
			return err
		}
		select {
		case <-tick.C:
		case err := <-ended:
			return errors.Join(errors.New("a part has ended"), err)
		case <-ctx.Done():
			return errors.New("an event was not handled")
		}
	}
}
