package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/rabbit"
)

func (a *actor) forward(ctx context.Context, db *sql.DB) error {
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	fwd, publisher, err := a.newForwarder(db)
	if err != nil {
		return err
	}
	if a.planted(plantDelete) || a.planted(plantOrder) {
		a.forwardBadly(ctx, db, publisher)
		return publisher.Close()
	}
	return errors.Join(fwd.Run(ctx), publisher.Close())
}

// newForwarder returns a forwarder. Its intervals are short, so that it notices faults
// while they are active. It gives up only on messages that the broker can never accept.
func (a *actor) newForwarder(db *sql.DB) (*forwarder.Forwarder, *rabbit.Publisher, error) {
	publisher, err := rabbit.NewPublisher(exchanges(a.AMQP), rabbit.PublisherConfig{
		ConfirmTimeout: 5 * time.Second,
		ReadyTimeout:   500 * time.Millisecond,
		DialTimeout:    5 * time.Second,
		WriteTimeout:   3 * time.Second,
		CloseTimeout:   3 * time.Second,
		ReconnectMin:   20 * time.Millisecond,
		ReconnectMax:   500 * time.Millisecond,
		MeterProvider:  a.tally.meters,
		Logger:         newLog(a.Name),
	})
	if err != nil {
		return nil, nil, err
	}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{
		PollMax:       50 * time.Millisecond,
		Backoff:       forwarder.Exponential(50*time.Millisecond, 500*time.Millisecond),
		MaxAttempts:   1_000_000,
		StallTimeout:  5 * time.Second,
		Lease:         forwarderLease,
		CloseTimeout:  5 * time.Second,
		MeterProvider: a.tally.meters,
		Logger:        newLog(a.Name),
	})
	return fwd, publisher, err
}

const forwarderLease = 2 * time.Second
