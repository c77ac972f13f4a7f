package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	_ "github.com/lib/pq"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
)

// The mail server is down: the messages for it wait, and all other messages are sent.
func ExampleMessages_Pause() { //nolint:testableexamples // it needs a database
	ctx := context.Background()
	db, err := sql.Open("postgres", "postgres://operator@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	messages, err := outbox.New(db, operate.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ann, mails := operate.Act{Actor: "ann", Why: "the mail server is down"}, outbox.Scope{Topic: "mails"}
	if err := messages.Pause(ctx, ann, mails); err != nil {
		log.Fatal(err)
	}
	paused, err := messages.ListPaused(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range paused {
		fmt.Println(p.Scope, p.Since, p.Actor, p.Why)
	}
	if err := messages.Resume(ctx, ann, mails); err != nil {
		log.Fatal(err)
	}
}
