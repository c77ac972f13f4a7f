package once_test

import (
	"context"
	"database/sql"
	"log"
	"time"

	"github.com/watermill-once/once/audit"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/status"
)

func _(ctx context.Context, db *sql.DB) error {
	reader, err := status.New(db, status.Config{})
	if err != nil {
		return err
	}
	now, err := reader.Read(ctx)
	if err != nil {
		return err
	}
	if now.Outbox.Oldest > time.Minute || len(now.Forwarders) == 0 {
		log.Printf("%+v", now.Outbox)
	}
	return nil
}

func _(ctx context.Context, db *sql.DB, id string, yesterday time.Time) error {
	acts, err := audit.New(db, audit.Config{})
	if err != nil {
		return err
	}
	page, err := acts.List(ctx, audit.Filter{MessageID: id, After: yesterday})
	log.Println(page.Records)
	return err
}

func _(db *sql.DB) (*pending.Messages, error) {
	messages, err := pending.New(db, pending.Config{WithoutContent: true})
	return messages, err
}

func _(ctx context.Context, messages *pending.Messages) error {
	err := messages.Pause(ctx, pending.Act{Actor: "ann", Why: "the mail server is down"}, pending.Scope{Topic: "mails"})
	return err
}
