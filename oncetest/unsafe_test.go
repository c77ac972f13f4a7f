package oncetest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
)

// A write outside of the transaction is reported, because it remains when the
// transaction is rolled back.
func TestWriteOutsideOfTheTransactionIsReported(t *testing.T) {
	t.Parallel()
	s := newShop(t, kit.Postgres(t))
	handler := func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := s.ExecContext(ctx, `INSERT INTO audit (what) VALUES ($1)`, "paid "+msg.UUID); err != nil {
			return nil, err
		}
		return pay(ctx, tx, msg)
	}
	r := examine(t, s.examined(handler))
	r.mustSay("lost at statement 2 of message 1",
		`connection lost at statement 2 of 3 of message "m1" (INSERT INTO payments (order_id, amount) VALUES ($1, 5)), then delivered again: `+
			`table audit has 3 rows where one delivery gives 2: (what="paid m1") is too many; `+
			`the handler writes outside of its transaction: after the rollback, table audit has 1 row where there had been 0: `+
			`(what="paid m1") is too many`)
	r.mustSay("lost before the commit of message 2",
		`connection lost before the commit of message "m2" took effect, then delivered again: `+
			`table audit has 3 rows where one delivery gives 2: (what="paid m2") is too many; `+
			`the handler writes outside of its transaction: after the rollback, table audit has 2 rows where there had been 1: `+
			`(what="paid m2") is too many`)
	want := []string{
		"lost at statement 2 of message 1", "lost at statement 2 of message 2",
		"lost at statement 3 of message 1", "lost at statement 3 of message 2",
		"lost before the commit of message 1", "lost before the commit of message 2",
		"statement 2 of message 1 fails", "statement 2 of message 2 fails",
		"statement 3 of message 1 fails", "statement 3 of message 2 fails",
	}
	if got := r.failed(); !slices.Equal(got, want) {
		t.Errorf("failed: %q", got)
	}
}

// The handler writes with a global *sql.DB, and executes nothing in its transaction. In
// one of the cases it writes the same rows at each delivery, so the tables are equal in
// the end. The handler is still reported, because its writes remain when the
// transaction is rolled back.
func TestHandlerThatDoesNotUseItsTransactionIsReported(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	s := newShop(t, kit.Postgres(t))
	const remains = `the handler writes outside of its transaction: after the rollback, ` +
		`table payments has 1 row where there had been 0: (amount=5 order_id="order-1") is too many; ` +
		`the handler ran no statement in its transaction: does it use a global *sql.DB instead of tx?`
	for name, c := range map[string]struct{ query, says string }{
		"the same each time": {
			`INSERT INTO payments (order_id, amount) SELECT $1, 5
			WHERE NOT EXISTS (SELECT 1 FROM payments WHERE order_id = $1)`,
			remains,
		},
		"another each time": {
			`INSERT INTO payments (order_id, amount) VALUES ($1, 5)`,
			`table payments has 3 rows where one delivery gives 2: (amount=5 order_id="order-1") is too many; ` + remains,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := examine(t, s.examined(func(ctx context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				_, err := s.ExecContext(ctx, c.query, string(msg.Payload))
				return nil, err
			}))
			const lost = "lost before the commit of message 1"
			r.mustSay(lost, `connection lost before the commit of message "m1" took effect, then delivered again: `+c.says)
			if got := r.failed(); !slices.Equal(got, []string{lost, "lost before the commit of message 2"}) {
				t.Errorf("failed: %q", got)
			}
		})
	}
}

// With SQLite a handler that writes outside of its transaction waits for its own
// transaction, because SQLite has one writer. This is reported.
func TestWriteOutsideOfTheTransactionIsReportedForSQLite(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+"?_txlock=immediate&_pragma=busy_timeout(5)")
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	s := newShop(t, kit.Database{DB: db, Dialect: "sqlite"})
	examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := s.ExecContext(ctx, `INSERT INTO audit (what) VALUES ('x')`); err != nil {
			return nil, err
		}
		return pay(ctx, tx, msg)
	})).mustSay("", `oncetest: delivered once: message "m1": it failed 10 times, the last time with: `+
		`database is locked (5) (SQLITE_BUSY); does the handler write outside of its transaction, which has the only write lock?`)
}

// A handler that counts in memory is reported, because a rollback does not restore the
// memory of the process.
func TestCounterInMemoryIsReported(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		seen := map[string]bool{}
		examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if seen[msg.UUID] {
				return nil, nil
			}
			seen[msg.UUID] = true
			return pay(ctx, tx, msg)
		})).mustFail("", "delivered once, and a second time on the same state: table payments has 0 rows where the first time gave 2: "+
			`(amount=5 order_id="order-1") is missing`, "not on memory or chance")

		// This handler forgets finished messages, so only the cases with a failure show
		// the mistake.
		under := map[string]bool{}
		r := examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if !under[msg.UUID] {
				under[msg.UUID] = true
				if _, err := pay(ctx, tx, msg); err != nil {
					return nil, err
				}
			}
			delete(under, msg.UUID)
			return nil, nil
		}))
		last := statements + 2
		r.mustFail(fmt.Sprintf("lost at statement %d of message 2", last),
			`of message "m2" (UPDATE totals SET sum = sum + 5 WHERE name = 'all'), then delivered again: `,
			`table payments has 1 row where one delivery gives 2: (amount=5 order_id="order-2") is missing`)
		if len(r.failed()) != 8 { // two faults for each of two statements, for each of two messages
			t.Errorf("failed: %q", r.failed())
		}
	})
}

// A handler that ignores an error is reported. After the error the transaction can
// continue in SQLite, and with a savepoint also in PostgreSQL.
func TestIgnoredErrorIsReported(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		r := examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if _, err := tx.ExecContext(ctx, `SAVEPOINT before_audit`); err != nil {
				return nil, err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO audit (what) VALUES ($1)`, msg.UUID); err != nil {
				if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT before_audit`); err != nil {
					return nil, err
				}
			}
			return pay(ctx, tx, msg)
		}))
		name := fmt.Sprintf("statement %d of message 1 fails", statements+2)
		r.mustFail(name, `of message "m1" failed (INSERT INTO audit (what) VALUES ($1)): `+
			`table audit has 1 row where one delivery gives 2: (what="m1") is missing; the handler returned no error, although a statement failed`)
		if len(r.failed()) != 2 {
			t.Errorf("failed: %q", r.failed())
		}
	})
}

// Without a savepoint, PostgreSQL refuses to commit after an error, and the message is
// delivered again. So ignoring the error is harmless.
func TestIgnoredErrorWithoutASavepointIsHarmless(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		r := examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, _ = pay(ctx, tx, msg)
			return nil, nil
		}))
		if s.Dialect == "postgres" {
			r.mustPass(subtests(2))
			return
		}
		want := []string{
			"statement 2 of message 1 fails", "statement 2 of message 2 fails",
			"statement 3 of message 1 fails", "statement 3 of message 2 fails",
		}
		if got := r.failed(); !slices.Equal(got, want) {
			t.Errorf("failed: %q", got)
		}
		r.mustFail("statement 3 of message 2 fails", "table totals has sum=105 where one delivery gives 110", "although a statement failed")
	})
}

func TestEffectThatDependsOnTheOrderIsReported(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		config := s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `UPDATE totals SET last = $1 WHERE name = 'all'`, string(msg.Payload))
			return nil, err
		})
		r := examine(t, config)
		r.mustFail("messages 1 and 2 swapped",
			`message "m2" delivered before "m1": table totals has last="order-1" where one delivery gives "order-2"`,
			"Config.Ordered")
		if len(r.failed()) != 1 {
			t.Errorf("failed: %q", r.failed())
		}
		config.Ordered = true
		examine(t, config).mustPass(subtests(1) - 1)
	})
}

func TestHandlerThatEndsItsTransactionIsReported(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		for name, end := range map[string]func(ctx context.Context, tx *sql.Tx) error{
			"Commit": func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
			"COMMIT": func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, ` commit; `)
				return err
			},
		} {
			r := examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				_, err := pay(ctx, tx, msg)
				return nil, errors.Join(err, end(ctx, tx))
			}))
			if r.mustFail("", `delivered once: message "m1": the handler commits its transaction itself`); len(r.subs) > 0 {
				t.Errorf("%s: subtests %v", name, r.subs)
			}
		}
		examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			defer func() { _ = tx.Rollback() }() // a common habit in code that begins its own transaction
			return pay(ctx, tx, msg)
		})).mustFail("", "the handler rolls back its transaction and returns no error")

		// A handler that rolls back and returns an error passes.
		n := 0
		examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if n++; n%5 == 0 {
				return nil, errors.Join(tx.Rollback(), errors.New("away"))
			}
			return pay(ctx, tx, msg)
		})).mustPass(subtests(2))
	})
}

// A message that is produced only in some attempts is reported, because produced
// messages are effects, too.
func TestMessageProducedByChanceIsReported(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		under := map[string]int{}
		r := examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			under[msg.UUID]++
			if _, err := pay(ctx, tx, msg); err != nil || under[msg.UUID] > 1 {
				return nil, err
			}
			delete(under, msg.UUID)
			return []*message.Message{once.To("paid", message.NewMessage(msg.UUID+"-paid", nil))}, nil
		}))
		r.mustFail(fmt.Sprintf("lost at statement %d of message 1", statements+1),
			`table once_outbox has 1 row where one delivery gives 2: (message_id="m1-paid" metadata=`, "is missing")
	})
}

// A handler that checks before it writes is reported, because another transaction may
// check at the same time.
func TestCheckThenWriteIsReported(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		config := s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			var paid int
			err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM payments WHERE order_id = $1`, string(msg.Payload)).Scan(&paid)
			if err != nil || paid > 0 {
				return nil, err
			}
			return pay(ctx, tx, msg)
		})
		config.Dedup.Consumer, config.Dedup.Idempotent = "search", []string{"search"}
		r := examine(t, config)
		if s.Dialect == "sqlite" { // SQLite has one writer, so no other transaction can read in between
			r.mustPass(subtests(3) - 2*2)
			return
		}
		r.mustFail("twice at once", "delivered twice at once: table payments has ", " rows where one delivery gives 2")
		if len(r.failed()) != 1 {
			t.Errorf("failed: %q", r.failed())
		}
		config.Dedup.Idempotent = nil
		examine(t, config).mustPass(subtests(3))
	})
}
