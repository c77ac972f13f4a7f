package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestRolledBackTransactionStoresNothing(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		failed := errors.New("business says no")
		hinted := false
		err := o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			if err := events.Publish("t", message.NewMessage("id", nil)); err != nil {
				t.Fatal(err)
			}
			return failed
		}, func() { hinted = true })
		if !reflect.DeepEqual(err, failed) {
			t.Fatalf("err is %v, want %v: the caller's error, as it is", err, failed)
		}
		if hinted {
			t.Fatal("hinted is true")
		}
		if got := rows(t, db, config); len(got) != 0 {
			t.Fatalf("rows(config) are %+v, want none", got)
		}
	})
}

// Trap 58. A panic in a transaction must roll it back.
func TestPanicRollsBackAndPropagates(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		panicked := func() (value any) {
			defer func() { value = recover() }()
			return o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
				if err := events.Publish("t", message.NewMessage("id", nil)); err != nil {
					t.Fatal(err)
				}
				panic("boom")
			})
		}()
		if panicked != "boom" {
			t.Fatalf(`InTx panics with %v, want "boom"`, panicked)
		}
		if got := rows(t, db, config); len(got) != 0 {
			t.Fatalf("rows(config) are %+v, want none", got)
		}
		if err := publish(t, db, o, "t", message.NewMessage("id", nil)); err != nil {
			t.Fatalf("%v: the connection is free again", err)
		}
	})
}

// If the forwarder runs in another process, its hint is nil here. InTx skips a nil
// hint, because calling it would panic after the commit.
func TestNilHintIsSkipped(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		hinted := false
		err := newOutbox(t, config).InTx(t.Context(), db, func(*sql.Tx, message.Publisher) error { return nil },
			nil, func() { hinted = true })
		if err != nil {
			t.Fatal(err)
		}
		if !hinted {
			t.Fatal("hinted is false")
		}
	})
}

func TestHintsAreCalledAfterTheCommit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		visible := 0
		err := newOutbox(t, config).InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			return events.Publish("t", message.NewMessage("id", nil))
		}, func() { visible = len(rows(t, db, config)) })
		if err != nil {
			t.Fatal(err)
		}
		if visible != 1 {
			t.Fatalf("visible is %d, want 1", visible)
		}
	})
}

func TestContextOfInTx(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := newOutbox(t, config).InTx(ctx, db, func(*sql.Tx, message.Publisher) error {
			t.Error("ran without a connection")
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want context.Canceled", err)
		}
		if err == nil || !strings.Contains(err.Error(), "outbox: ") {
			t.Fatalf(`got %v, want an error with "outbox: "`, err)
		}
	})
}

func TestPublisherFailsAfterItsTransaction(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var events message.Publisher
		err := newOutbox(t, config).InTx(t.Context(), db, func(_ *sql.Tx, inside message.Publisher) error {
			events = inside
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := events.Publish("t", message.NewMessage("id", nil)); !errors.Is(err, sql.ErrTxDone) {
			t.Fatalf("Publish: got %v, want sql.ErrTxDone", err)
		}
		if err := events.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Trap 33. One statement accepts a limited number of parameters, but a call of Publish
// may have any number of messages.
func TestPublishStoresAnyNumberOfMessages(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		if err := publish(t, db, o, "t"); err != nil {
			t.Fatalf("%v: no message", err)
		}
		if err := publish(t, db, o, ""); err != nil {
			t.Fatalf("%v: no message, so nothing can be wrong with one", err)
		}

		many := 30_000 // one statement accepts 65,535 parameters in PostgreSQL, and 32,766 in SQLite
		if config.Dialect == schema.SQLite {
			many = 7_000
		}
		msgs := make([]*message.Message, many)
		for i := range msgs {
			msgs[i] = &message.Message{UUID: fmt.Sprint(i)} // its metadata is nil
		}
		if err := publish(t, db, o, "t", msgs...); err != nil {
			t.Fatal(err)
		}
		for i, r := range rows(t, db, config) {
			if want := fmt.Sprint(i); r.id != want {
				t.Fatalf("r.id is %q, want %q", r.id, want)
			}
		}

		err := o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			if err := events.Publish("t", msgs...); err != nil {
				t.Fatal(err)
			}
			return errors.New("all of them are in one transaction")
		})
		if err == nil {
			t.Fatal("got no error")
		}
		if got := rows(t, db, config); len(got) != many {
			t.Fatalf("%d rows, want %d: %+v", len(got), many, got)
		}
	})
}

func TestSchemaAdapterForWatermillSQLsPublisher(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		adapter := o.SchemaAdapter()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		pub, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: adapter}, nil)
		if err != nil {
			t.Fatal(err)
		}

		if err := pub.Publish("orders.placed", message.NewMessage("1", []byte("a")), message.NewMessage("2", nil)); err != nil {
			t.Fatal(err)
		}
		if err := pub.Publish("payments"); err != nil {
			t.Fatalf("%v: no message", err)
		}
		if err := pub.Publish("payments", message.NewMessage("", nil)); !errors.Is(err, outbox.ErrInvalid) {
			t.Fatalf("Publish: got %v, want ErrInvalid", err)
		}
		many := make([]*message.Message, 2000)
		for i := range many {
			many[i] = message.NewMessage(fmt.Sprint(i), nil)
		}
		if err := pub.Publish("payments", many...); err == nil || !strings.Contains(err.Error(), "outbox.Publisher") {
			t.Fatalf(`Publish: got %v, want an error with "outbox.Publisher"`, err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}

		all := rows(t, db, config)
		if len(all) != 2 {
			t.Fatalf("len(all) is %d, want 2: %+v", len(all), all)
		}
		if all[0].topic != "orders.placed" {
			t.Fatalf(`all[0].topic is %q, want "orders.placed"`, all[0].topic)
		}

		if _, err := db.Exec(adapter.SelectQuery("t", "g", nil).Query); err == nil || !strings.Contains(err.Error(), "read by the forwarder") {
			t.Fatalf(`Exec: got %v, want an error with "read by the forwarder"`, err)
		}
		if _, err := adapter.UnmarshalMessage(nil); err == nil || !strings.Contains(err.Error(), "read by the forwarder") {
			t.Fatalf(`UnmarshalMessage: got %v, want an error with "read by the forwarder"`, err)
		}
		if got := adapter.SchemaInitializingQueries("t"); len(got) != 0 {
			t.Fatalf(`adapter.SchemaInitializingQueries("t") are %v, want none`, got)
		}
	})
}

func TestPackageFunctions(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	err := outbox.InTx(t.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
		return errors.Join(
			events.Publish("t", message.NewMessage("1", nil)),
			outbox.Publisher(tx).Publish("t", message.NewMessage("2", nil)),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := rows(t, db, schema.Config{}); len(got) != 2 {
		t.Fatalf("%d rows, want 2: %+v", len(got), got)
	}
}

func TestSchemaAndPrefix(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	config := schema.Config{Schema: "sales", Prefix: "evt_"}
	if err := schema.Up(t.Context(), db, config); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, db, newOutbox(t, config), "t", message.NewMessage("1", nil)); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := db.QueryRow(`SELECT COUNT(*) FROM sales.evt_outbox`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 1 {
		t.Fatalf("n is %d, want 1", n)
	}
}

// Trap 04. If the connection is lost during the commit, InTx returns ErrCommitUnknown
// and calls the hint.
func TestLostConnectionAtCommitIsUnknown(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	hinted := false
	err := outbox.InTx(t.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
		if err := events.Publish("t", message.NewMessage("id", nil)); err != nil {
			t.Fatal(err)
		}
		var pid int
		if err := tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		_, err := db.Exec("SELECT pg_terminate_backend($1, 5000)", pid)
		return err
	}, func() { hinted = true })
	if !errors.Is(err, outbox.ErrCommitUnknown) {
		t.Fatalf("got %v, want ErrCommitUnknown", err)
	}
	if !hinted {
		t.Fatal("hinted is false: it may have committed")
	}
}
