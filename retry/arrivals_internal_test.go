package retry

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// If the consumer nacks a message because it shuts down, it must not store later
// messages, even if the database works again. Otherwise they would be handled before
// the nacked one.
func TestKeyOrderNacksSuccessorsOfNackedMessage(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	r, err := New(db.DB, Config{Schema: config, KeyOrder: BlockWhileRetried})
	if err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) {
		if _, err := db.ExecContext(t.Context(), `ALTER TABLE `+from+` RENAME TO `+to); err != nil {
			t.Fatal(err)
		}
	}
	closing, ended := make(chan struct{}), make(chan struct{})
	in := make(chan *message.Message)
	f := newFetcher(&subscriber{retries: r, consumer: "payments"}, "orders.placed", closing, 0)
	go func() {
		defer close(ended)
		f.forward(t.Context(), in, nil)
	}()

	rename("once_parked", "away")
	for n, what := range []string{"the first, which cannot be stored", "its successor, which could be"} {
		msg := message.NewMessage(what, nil)
		msg.Metadata[meta.OrderingKey] = "k"
		in <- msg
		if n == 0 {
			close(closing)
		}
		select {
		case <-msg.Nacked():
		case <-msg.Acked():
			t.Fatalf("%s was acked", what)
		case <-time.After(20 * time.Second):
			t.Fatalf("%s has neither ack nor nack", what)
		}
		if n == 0 {
			rename("away", "once_parked")
		}
	}
	close(in)
	<-ended
}

// If a transport ends with messages in flight, they must be stored.
func TestKeyOrderStoresMessagesThatArriveBeforeTransportEnds(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	config := schema.Config{}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	r, err := New(db.DB, Config{Schema: config, KeyOrder: BlockWhileRetried})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `LOCK TABLE once_parked`)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	in, ended := make(chan *message.Message), make(chan struct{})
	f := newFetcher(&subscriber{retries: r, consumer: "payments"}, "orders.placed", nil, 0)
	go func() {
		defer close(ended)
		f.forward(t.Context(), in, nil)
	}()
	msgs := []*message.Message{message.NewMessage("first", nil), message.NewMessage("came while that is stored", nil)}
	for _, msg := range msgs {
		msg.Metadata[meta.OrderingKey] = "k"
		in <- msg
	}
	close(in)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	<-ended
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
		default:
			t.Errorf("%s was not acked", msg.UUID)
		}
	}
}
