package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

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
			require.NoError(t, events.Publish("t", message.NewMessage("id", nil)))
			return failed
		}, func() { hinted = true })
		require.Equal(t, failed, err, "the caller's error, as it is")
		require.False(t, hinted)
		require.Empty(t, rows(t, db, config))
	})
}

// Trap 58. A panic in a transaction must roll it back.
func TestPanicRollsBackAndPropagates(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		require.PanicsWithValue(t, "boom", func() {
			_ = o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
				require.NoError(t, events.Publish("t", message.NewMessage("id", nil)))
				panic("boom")
			})
		})
		require.Empty(t, rows(t, db, config))
		require.NoError(t, publish(t, db, o, "t", message.NewMessage("id", nil)), "the connection is free again")
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
		require.NoError(t, err)
		require.True(t, hinted)
	})
}

func TestHintsAreCalledAfterTheCommit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		visible := 0
		err := newOutbox(t, config).InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			return events.Publish("t", message.NewMessage("id", nil))
		}, func() { visible = len(rows(t, db, config)) })
		require.NoError(t, err)
		require.Equal(t, 1, visible)
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
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "outbox: ")
	})
}

func TestPublisherFailsAfterItsTransaction(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var events message.Publisher
		require.NoError(t, newOutbox(t, config).InTx(t.Context(), db, func(_ *sql.Tx, inside message.Publisher) error {
			events = inside
			return nil
		}))
		require.ErrorIs(t, events.Publish("t", message.NewMessage("id", nil)), sql.ErrTxDone)
		require.NoError(t, events.Close())
	})
}

// Trap 33. One statement accepts a limited number of parameters, but a call of Publish
// may have any number of messages.
func TestPublishStoresAnyNumberOfMessages(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		require.NoError(t, publish(t, db, o, "t"), "none")
		require.NoError(t, publish(t, db, o, ""), "none, so nothing can be wrong with them")

		many := 30_000 // one statement accepts 65,535 parameters in PostgreSQL, and 32,766 in SQLite
		if config.Dialect == schema.SQLite {
			many = 7_000
		}
		msgs := make([]*message.Message, many)
		for i := range msgs {
			msgs[i] = &message.Message{UUID: fmt.Sprint(i)} // its metadata is nil
		}
		require.NoError(t, publish(t, db, o, "t", msgs...))
		for i, r := range rows(t, db, config) {
			require.Equal(t, fmt.Sprint(i), r.id)
		}

		err := o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			require.NoError(t, events.Publish("t", msgs...))
			return errors.New("all of them are in one transaction")
		})
		require.Error(t, err)
		require.Len(t, rows(t, db, config), many)
	})
}

func TestSchemaAdapterForWatermillSQLsPublisher(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		adapter := o.SchemaAdapter()
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		pub, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: adapter}, nil)
		require.NoError(t, err)

		require.NoError(t, pub.Publish("orders.placed", message.NewMessage("1", []byte("a")), message.NewMessage("2", nil)))
		require.NoError(t, pub.Publish("payments"), "no messages, no error")
		require.ErrorIs(t, pub.Publish("payments", message.NewMessage("", nil)), outbox.ErrInvalid)
		many := make([]*message.Message, 2000)
		for i := range many {
			many[i] = message.NewMessage(fmt.Sprint(i), nil)
		}
		require.ErrorContains(t, pub.Publish("payments", many...), "outbox.Publisher")
		require.NoError(t, tx.Commit())

		all := rows(t, db, config)
		require.Len(t, all, 2)
		require.Equal(t, "orders.placed", all[0].topic)

		_, err = db.Exec(adapter.SelectQuery("t", "g", nil).Query)
		require.ErrorContains(t, err, "read by the forwarder")
		_, err = adapter.UnmarshalMessage(nil)
		require.ErrorContains(t, err, "read by the forwarder")
		require.Empty(t, adapter.SchemaInitializingQueries("t"))
	})
}

func TestPackageFunctions(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	require.NoError(t, outbox.InTx(t.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
		return errors.Join(
			events.Publish("t", message.NewMessage("1", nil)),
			outbox.Publisher(tx).Publish("t", message.NewMessage("2", nil)),
		)
	}))
	require.Len(t, rows(t, db, schema.Config{}), 2)
}

func TestSchemaAndPrefix(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	config := schema.Config{Schema: "sales", Prefix: "evt_"}
	require.NoError(t, schema.Up(t.Context(), db, config))
	require.NoError(t, publish(t, db, newOutbox(t, config), "t", message.NewMessage("1", nil)))
	var n int
	require.NoError(t, db.QueryRow(`SELECT COUNT(*) FROM sales.evt_outbox`).Scan(&n))
	require.Equal(t, 1, n)
}

// Trap 04. If the connection is lost during the commit, the outcome is unknown.
func TestLostConnectionAtCommitIsUnknown(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	hinted := false
	err := outbox.InTx(t.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
		require.NoError(t, events.Publish("t", message.NewMessage("id", nil)))
		var pid int
		require.NoError(t, tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
		_, err := db.Exec("SELECT pg_terminate_backend($1, 5000)", pid)
		return err
	}, func() { hinted = true })
	require.ErrorIs(t, err, outbox.ErrCommitUnknown)
	require.True(t, hinted, "it may have committed")
}
