package oncetest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/oncetest"
	"github.com/watermill-once/once/schema"
)

func TestConfigErrorNamesEveryField(t *testing.T) {
	t.Parallel()
	examine(t, oncetest.Config{
		Timeout: -1, Tables: []string{""}, Ignore: []string{"id", ""},
		Dedup: dedup.Config{Schema: schema.Config{Prefix: "a b"}, LockTimeout: -1},
	}).mustFail("", "oncetest: ", "DB is nil", "Handler is nil", "Reset is nil", "Messages is empty", "Tables has an empty name",
		"Ignore has an empty name", "Timeout is -1ns: negative", "Dedup: ", "Prefix", "LockTimeout")
	examine(t, oncetest.Config{Messages: []*message.Message{
		message.NewMessage("m1", nil), nil, message.NewMessage("m1", nil), message.NewMessage("", nil),
	}}).mustFail("", "Messages[1] is nil", `Messages[2] has the id "m1" of an earlier one`, "Messages[3] has no id")
}

func TestMissingTablesAreReported(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	config := shop{db, schema.Config{Dialect: schema.SQLite}}.examined(pay)
	examine(t, config).mustFail("", "run schema.Up")

	config = newShop(t, db).examined(pay)
	config.Tables = []string{"payment", "payments", "total"}
	examine(t, config).mustFail("", "table payment: ", "no such table", "table total: ")
}

// A handler that changes none of the compared tables is refused, because its test would
// always pass.
func TestHandlerWithoutAVisibleEffectIsRefused(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		config := s.examined(pay)
		config.Tables = []string{"audit"}
		examine(t, config).mustFail("", "no table changes")
		config.Tables = []string{"audit", "payments"}
		examine(t, config).mustPass(subtests(2))
	})
}

func TestTablesOfOtherSchemas(t *testing.T) {
	t.Parallel()
	s := newShop(t, kit.Postgres(t))
	for _, statement := range []string{`CREATE SCHEMA shop`, `ALTER TABLE payments SET SCHEMA shop`, `DROP TABLE totals`} {
		kit.Exec(t, s, statement)
	}
	config := s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		_, err := tx.ExecContext(ctx, `INSERT INTO shop.payments (order_id, amount) VALUES ('1', 1)`)
		return nil, err
	})
	config.Reset = func(ctx context.Context, db *sql.DB) error {
		_, err := db.ExecContext(ctx, `TRUNCATE shop.payments`)
		return err
	}
	examine(t, config).mustFail("", "no table changes")
	config.Tables = []string{"shop.payments"}
	examine(t, config).mustPass(subtests(1))
}

func TestResetMustRestoreTheSameState(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		config := s.examined(pay)
		config.Reset = func(context.Context, *sql.DB) error { return nil }
		examine(t, config).mustFail("", "Reset does not restore the same state each time: table payments has 2 rows where the first time gave 0")
		config.Reset = func(context.Context, *sql.DB) error { return errors.New("no permission") }
		examine(t, config).mustFail("", "Reset: no permission")
	})
}

// A handler that never succeeds, or hangs, is reported.
func TestMessageThatNeverSucceedsIsReported(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		config := s.examined(func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
			return nil, errors.New("unknown currency")
		})
		examine(t, config).mustFail("", `delivered once: message "m1": it failed 10 times, the last time with: unknown currency`)

		config.Handler = func(ctx context.Context, _ *sql.Tx, _ *message.Message) ([]*message.Message, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		config.Timeout = 20 * time.Millisecond
		examine(t, config).mustFail("", `message "m1": it did not succeed within 20ms`)
	})
}

// A pool of one connection is enough. Many users of SQLite have such a pool.
func TestPoolOfOneConnectionIsEnough(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		s.SetMaxOpenConns(1)
		examine(t, s.examined(pay)).mustPass(subtests(2))
		if open := s.Stats().InUse; open != 0 {
			t.Errorf("%d connections are left in use", open)
		}
	})
}
