package docs

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/oncetest"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/retry"
)

// More code of the docs.

func _(db *sql.DB, router *message.Router, subscriber message.Subscriber) error {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "payments", "orders.placed", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload))
			captured := outbox.NewMessage(msg.Payload)
			return []*message.Message{once.To("payments.captured", captured)}, err
		})
	return nil
}

func _(dsn string) error {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return err
	}
	db := sql.OpenDB(lazytx.Connector(connector))
	_ = db
	return nil
}

func _(db *sql.DB) error {
	inbox, err := dedup.New(db, dedup.Config{
		Outbox: outbox.Publisher,
		Key: func(msg *message.Message) string { // identifies the requested operation
			return "capture/" + msg.Metadata.Get("order_id")
		},
		Content: func(msg *message.Message) []byte { // must be equal in all copies
			return []byte(msg.Metadata.Get("amount"))
		},
	})
	_ = inbox
	return err
}

func _(db *sql.DB) error {
	inbox, err := dedup.New(db, dedup.Config{
		Outbox:     outbox.Publisher,
		Idempotent: []string{"search-index", "order-projection"}, // names of consumers
	})
	_ = inbox
	return err
}

func _(db *sql.DB, errGatewayAway error) error {
	retries, err := retry.New(db, retry.Config{
		Policy: retry.Policy{Immediate: 2, Delayed: 5},
		Classes: []retry.Class{{
			Match:  func(err error) bool { return errors.Is(err, errGatewayAway) },
			Policy: retry.Policy{Immediate: -1, Delayed: 48, Base: time.Minute, Max: 30 * time.Minute},
		}},
	})
	_ = retries
	return err
}

func _(ctx context.Context, entries *quarantine.Entries) error {
	page, err := entries.Groups(ctx, operate.Filter{Consumer: "payments"})
	if err != nil {
		return err
	}
	for _, g := range page.Groups {
		log.Printf("%s %6d  %s  since %s: %s\n", g.Fingerprint, g.Count, g.Reason, g.FirstFailedAt, g.Error)
	}

	ann := operate.Act{Actor: "ann", Why: "the card gateway is back"}
	gateway := operate.Filter{Consumer: "payments", Fingerprint: page.Groups[0].Fingerprint}
	slowly := operate.Plan{
		Canary:        10,
		Rate:          50, // a second
		StopOnFailure: true,
		Progress:      func(r operate.Report) { log.Println(r.Resolved, "of", r.Total) },
	}
	affected, err := entries.DryRun(ctx, gateway, slowly)
	if err != nil {
		return err
	}
	replay, err := entries.ReplayMatching(ctx, ann, gateway, slowly)
	if errors.Is(err, operate.ErrReplayStopped) {
		log.Println(replay.ID, "was stopped:", replay.StopReason)
	}
	_ = affected
	return err
}

func _(ctx context.Context, entries *quarantine.Entries) error {
	why := operate.Act{Actor: "ann", Why: "negative amount"}
	edited, err := entries.Edit(ctx, why, 17, func(msg *message.Message) error {
		msg.Payload = []byte(`{"amount": 5}`)
		return nil
	}, quarantine.EditOptions{})
	_ = edited
	return err
}

// accounts stands for a service that a reader of the docs has written.
type accounts struct{ db *sql.DB }

func (accounts) credit(context.Context, string, int) error { return nil }

func (accounts) debit(context.Context, string, int) error { return nil }

func _(t *testing.T, db *sql.DB) {
	oncetest.RunOrder(t, oncetest.OrderConfig{
		DB:     db, // PostgreSQL, with three connections or more
		First:  func(ctx context.Context, db *sql.DB) error { return accounts{db}.credit(ctx, "17", 5) },
		Second: func(ctx context.Context, db *sql.DB) error { return accounts{db}.debit(ctx, "17", 3) },
		Reset: func(ctx context.Context, db *sql.DB) error {
			_, err := db.ExecContext(ctx, `TRUNCATE accounts; INSERT INTO accounts (id) VALUES ('17')`)
			return err
		},
	})
}

func _(t *testing.T, db *sql.DB, capturePayment once.HandlerFunc) {
	oncetest.Run(t, oncetest.Config{
		DB:       db, // a test database: PostgreSQL, or SQLite in a file, with the tables of service and library
		Handler:  capturePayment,
		Messages: []*message.Message{message.NewMessage("order-17", []byte("17")), message.NewMessage("order-18", []byte("18"))},
		Reset: func(ctx context.Context, db *sql.DB) error {
			_, err := db.ExecContext(ctx, `TRUNCATE payments RESTART IDENTITY`)
			return err
		},
		Ignore: []string{"captured_at"},
	})
}

func mountConsole(mux *http.ServeMux, db *sql.DB, user func(*http.Request) (name string, operator bool)) (*console.Console, error) {
	pages, err := console.Handler(db, console.Config{
		Environment: "production",
		Color:       console.Red,
		Authorize: func(r *http.Request, action console.Action) (string, error) {
			name, operator := user(r)
			if name == "" || action.Changes() && !operator {
				return "", errors.New("not allowed")
			}
			return name, nil
		},
	})
	if err == nil {
		mux.Handle("/ops/once/", pages)
	}
	return pages, err
}

var _ = mountConsole
