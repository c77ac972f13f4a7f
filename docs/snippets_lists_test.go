package docs

import (
	"context"
	"database/sql"
	"log"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
)

func _(ctx context.Context, db *sql.DB) error {
	messages, err := outbox.New(db, operate.Config{})
	if err != nil {
		return err
	}
	page, err := messages.List(ctx, operate.Filter{State: outbox.BackingOff, Topic: "orders.placed"})
	if err != nil {
		return err
	}
	for _, m := range page.Rows {
		log.Printf("%s: attempt %d failed: %s; due at %v", m.MessageID, m.Attempts, m.LastError, m.DueAt)
	}
	act := operate.Act{Actor: "ann", Why: "the queue is declared again"}
	_, err = messages.RetryMatching(ctx, act, operate.Filter{Topic: "orders.placed"}, operate.Plan{Rate: 100})
	return err
}
