package once_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/watermill-once/once/parked"
)

// The code of docs/consumers.md, as in snippets_test.go.

func _(ctx context.Context, db *sql.DB) error {
	messages, err := parked.New(db, parked.Config{})
	if err != nil {
		return err
	}
	later := parked.Filter{Consumer: "payments", State: parked.Waiting}
	page, err := messages.List(ctx, later)
	if err != nil {
		return err
	}
	for _, m := range page.Messages {
		log.Printf("%s: attempt %d failed: %s; due at %v", m.MessageID, m.Attempts, m.Error, m.DueAt)
	}
	act := parked.Act{Actor: "ann", Why: "the card gateway is back"}
	_, err = messages.RunNowMatching(ctx, act, later, parked.Plan{Rate: 100})
	return err
}

func _(ctx context.Context, messages *parked.Messages) error {
	consumers, err := messages.Consumers(ctx)
	if err != nil {
		return err
	}
	for _, c := range consumers {
		log.Println(c.Name, c.Topic, c.Running, len(c.Instances), c.Waiting, c.Failing, c.Quarantined, c.Lag)
	}
	return nil
}
