package pgxoutbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/pgxoutbox"
	"github.com/watermill-once/once/schema"
)

func TestEventsFollowTheTransactionInEveryModeOfPgx(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			b := newBench(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			hinted := 0
			for _, id := range []string{"a", "fails", "b"} {
				err := pgxoutbox.InTx(t.Context(), b.pool, func(tx pgx.Tx, events message.Publisher) error {
					if err := place(t.Context(), tx, events, id); err != nil || id != "fails" {
						return err
					}
					return errWork
				}, nil, func() { hinted++ })
				if (id == "fails") != errors.Is(err, errWork) {
					t.Error(id, err)
				}
			}
			func() {
				defer func() { _ = recover() }()
				_ = b.inTx(func(tx pgx.Tx, events message.Publisher) error {
					_ = place(t.Context(), tx, events, "panics")
					panic("on purpose")
				})
			}()
			b.expect("a b", "a b")
			if hinted != 2 {
				t.Errorf("%d hints", hinted)
			}
			kit.Eventually(t, time.Minute, "no connection is in use", func() bool { // the pool closes a broken connection in the background
				return b.pool.Stat().AcquiredConns() == 0
			})
		})
	}
}

// The events are sent together with COMMIT.
func TestAnEventCostsNoRoundTrip(t *testing.T) {
	b := newBench(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	trips := func(events int, id string) (n int64) {
		before := b.trips.Load()
		kit.OK(t, b.inTx(func(tx pgx.Tx, publisher message.Publisher) error {
			if _, err := tx.Exec(t.Context(), `INSERT INTO orders (id) VALUES ($1)`, id); err != nil {
				return err
			}
			for i := range events {
				if err := publisher.Publish("orders.placed", event(fmt.Sprint(id, i))); err != nil {
					return err
				}
			}
			return nil
		}))
		return b.trips.Load() - before
	}
	for n, events := range []int{0, 1, 3} { // the statements are prepared here, once for each connection
		trips(events, fmt.Sprint("prepares", n))
	}
	without, one, three := trips(0, "x"), trips(1, "y"), trips(3, "z")
	if without != 2 || one != without || three != without {
		t.Errorf("%d round trips without an event, %d with one, %d with three", without, one, three)
	}
}

// The rows equal the rows that package outbox stores.
func TestRowsEqualTheRowsOfTheOutbox(t *testing.T) {
	b := newBench(t, nil)
	tx, err := b.BeginTx(t.Context(), nil)
	kit.OK(t, err)
	msgs := func() []*message.Message {
		keyed, due, empty := event("keyed"), event("due"), message.NewMessage("empty", nil)
		outbox.SetOrderingKey(keyed, "k")
		outbox.SetAggregate(keyed, "order", "17", 3)
		outbox.SetDueAt(due, time.Date(2999, 1, 2, 3, 4, 5, 6000, time.UTC))
		keyed.Metadata.Set("quoted", "\"\\ \u2028 ü")
		return []*message.Message{keyed, due, empty}
	}
	err = outbox.Publisher(tx).Publish("orders.placed", msgs()...)
	kit.OK(t, errors.Join(err, tx.Commit()))
	const columns = `SELECT row(message_id, topic, ordering_key, slot, payload, metadata::jsonb, due_at, attempts)::text FROM once_outbox`
	want := b.text(columns + ` ORDER BY position`)
	b.Exec(`DELETE FROM once_outbox`)
	for name, publish := range map[string]func() error{
		"InTx": func() error {
			return b.inTx(func(_ pgx.Tx, events message.Publisher) error { return events.Publish("orders.placed", msgs()...) })
		},
		"Publisher": func() error {
			return pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
				if err := pgxoutbox.LockKey(t.Context(), tx, "k"); err != nil {
					return err
				}
				return pgxoutbox.Publisher(t.Context(), tx).Publish("orders.placed", msgs()...)
			})
		},
	} {
		if err := publish(); err != nil {
			t.Fatal(name, err)
		}
		if got := b.text(columns + ` ORDER BY position`); got != want {
			t.Errorf("%s stores\n%s\nwant\n%s", name, got, want)
		}
		b.Exec(`DELETE FROM once_outbox`)
	}
}

// A rollback to a savepoint removes the events that were published after the savepoint, and no
// other events.
func TestEventsFollowTheirSavepoint(t *testing.T) {
	for name, savepoint := range map[string]func(ctx context.Context, tx pgx.Tx, work func(tx pgx.Tx) error) error{
		"Begin": func(ctx context.Context, tx pgx.Tx, work func(tx pgx.Tx) error) error {
			return pgx.BeginFunc(ctx, tx, work)
		},
		"text": func(ctx context.Context, tx pgx.Tx, work func(tx pgx.Tx) error) error {
			if _, err := tx.Exec(ctx, `SAVEPOINT here`); err != nil {
				return err
			}
			if work(tx) == nil {
				return nil
			}
			_, err := tx.Exec(ctx, `ROLLBACK TO SAVEPOINT here`)
			return errors.Join(errWork, err)
		},
		"connection": func(ctx context.Context, tx pgx.Tx, work func(tx pgx.Tx) error) error {
			conn := tx.Conn()
			if _, err := conn.Exec(ctx, `SAVEPOINT here`); err != nil {
				return err
			}
			if work(tx) == nil {
				return nil
			}
			_, err := conn.Exec(ctx, `ROLLBACK TO SAVEPOINT here`)
			return errors.Join(errWork, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			kit.OK(t, b.inTx(func(tx pgx.Tx, events message.Publisher) error {
				ctx := t.Context()
				if err := place(ctx, tx, events, "a"); err != nil {
					return err
				}
				if err := savepoint(ctx, tx, func(tx pgx.Tx) error {
					return errors.Join(place(ctx, tx, events, "undone"), errWork)
				}); !errors.Is(err, errWork) {
					return fmt.Errorf("no error of the savepoint: %w", err)
				}
				if err := savepoint(ctx, tx, func(tx pgx.Tx) error { return place(ctx, tx, events, "b") }); err != nil {
					return err
				}
				return place(ctx, tx, events, "c")
			}))
			b.expect("a b c", "a b c")
		})
	}
}

func TestNothingIsCommittedAfterAMistake(t *testing.T) {
	b := newBench(t, nil)
	b.Exec(`CREATE TABLE items (order_id text REFERENCES orders DEFERRABLE INITIALLY DEFERRED)`)
	ctx := t.Context()
	var kept pgx.Tx
	var keptEvents message.Publisher
	for name, c := range map[string]struct {
		work func(tx pgx.Tx, events message.Publisher) error
		want string
	}{
		"ignored error": {func(tx pgx.Tx, events message.Publisher) error {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return events.Publish("t", event("e"))
		}, "a statement of the transaction has failed and work has ignored its error"},
		"commit as text": {func(tx pgx.Tx, events message.Publisher) error {
			_, err := tx.Exec(ctx, `COMMIT`)
			return errors.Join(err, events.Publish("t", event("e")))
		}, "work has ended the transaction"},
		"commit": {func(tx pgx.Tx, _ message.Publisher) error { return tx.Commit(ctx) }, "InTx ends the transaction"},
		"deferred constraint": {func(tx pgx.Tx, events message.Publisher) error {
			_, err := tx.Exec(ctx, `INSERT INTO items VALUES ('none')`)
			return errors.Join(err, events.Publish("t", event("e")))
		}, "violates foreign key constraint"},
		"invalid message": {func(_ pgx.Tx, events message.Publisher) error { return events.Publish("t", event("")) }, "is empty"},
		"closed connection": {func(tx pgx.Tx, events message.Publisher) error {
			return errors.Join(events.Publish("t", event("e")), tx.Conn().Close(ctx))
		}, "the connection was closed before the commit"},
	} {
		err := b.inTx(func(tx pgx.Tx, events message.Publisher) error {
			kept, keptEvents = tx, events
			return c.work(tx, events)
		})
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, outbox.ErrCommitUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := kept.Exec(ctx, `SELECT 1`); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s: the transaction can be used after its end: %v", name, err)
		}
		if err := keptEvents.Publish("t", event("late")); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s: an event can be published after the end: %v", name, err)
		}
		b.expect("", "")
	}
}

// The server ends the session before COMMIT arrives. The client cannot know this, so the result of
// the commit is unknown.
func TestLostConnectionIsAnUnknownCommit(t *testing.T) {
	b := newBench(t, nil)
	hinted := 0
	err := pgxoutbox.InTx(t.Context(), b.pool, func(tx pgx.Tx, events message.Publisher) error {
		if err := place(t.Context(), tx, events, "a"); err != nil {
			return err
		}
		var pid int
		if err := tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		_, err := b.ExecContext(t.Context(), `SELECT pg_terminate_backend($1, 60000)`, pid)
		return err
	}, func() { hinted++ })
	if !errors.Is(err, outbox.ErrCommitUnknown) || hinted != 1 {
		t.Errorf("%v, %d hints", err, hinted)
	}
	b.expect("", "")
	// The pool has idle connections that are dead.
	b.Exec(`SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()`)
	kit.Check(t, b.inTx(func(tx pgx.Tx, events message.Publisher) error { return place(t.Context(), tx, events, "b") }))
	b.expect("b", "b")
}

func TestMistakesNameTheRemedy(t *testing.T) {
	b := newBench(t, nil)
	for want, call := range map[string]func() error{
		`pgxoutbox: Schema.Dialect is "sqlite": pgx connects to PostgreSQL only`: func() error {
			_, err := pgxoutbox.New(outbox.Config{Schema: schema.Config{Dialect: schema.SQLite}})
			return err
		},
		"MaxPayload is -1": func() error {
			_, err := pgxoutbox.New(outbox.Config{MaxPayload: -1})
			return err
		},
		"one of them is nil": func() error { return pgxoutbox.InTx(t.Context(), nil, nil) },
		"the pgx.Tx is nil":  func() error { return pgxoutbox.Publisher(t.Context(), nil).Publish("t", event("e")) },
		"is nil":             func() error { return pgxoutbox.LockKey(t.Context(), nil, "k") },
		"at least one ordering": func() error {
			return b.inTx(func(tx pgx.Tx, _ message.Publisher) error { return pgxoutbox.LockKey(t.Context(), tx) })
		},
		"table \"other_outbox\" cannot be written: grant the role of a producer": func() error {
			o, err := pgxoutbox.New(outbox.Config{Schema: schema.Config{Prefix: "other_"}})
			if err != nil {
				return err
			}
			return o.InTx(t.Context(), b.pool, func(_ pgx.Tx, events message.Publisher) error { return events.Publish("t", event("e")) })
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pgxoutbox.InTx(ended, b.pool, func(pgx.Tx, message.Publisher) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The events of a transaction keep their order even if one statement cannot insert all
// of them.
func TestManyEventsKeepTheirOrder(t *testing.T) {
	b := newBench(t, nil)
	var want []string
	kit.OK(t, b.inTx(func(_ pgx.Tx, events message.Publisher) error {
		var msgs []*message.Message
		for n := range 250 {
			want = append(want, fmt.Sprintf("m%03d", n))
			msgs = append(msgs, event(want[n]))
		}
		return events.Publish("orders.placed", msgs...)
	}))
	b.expect("", strings.Join(want, " "))
}

// Trap 90. A function that ends its transaction gets an error from InTx. No event is
// committed without the writes before it.
func TestFunctionThatEndsItsTransactionIsRefused(t *testing.T) {
	b := newBench(t, nil)
	for _, end := range []string{
		`ROLLBACK`, `COMMIT`, `ROLLBACK; BEGIN`, `ROLLBACK AND CHAIN`, `COMMIT; BEGIN`, `/* c */ end and chain`,
	} {
		for name, run := range map[string]func(tx pgx.Tx) error{
			"Exec": func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), end)
				return err
			},
			"Conn": func(tx pgx.Tx) error {
				_, err := tx.Conn().Exec(t.Context(), end)
				return err
			},
			"batch": func(tx pgx.Tx) error {
				batch := &pgx.Batch{}
				for s := range strings.SplitSeq(end, ";") {
					batch.Queue(s)
				}
				return tx.SendBatch(t.Context(), batch).Close()
			},
		} {
			err := b.inTx(func(tx pgx.Tx, events message.Publisher) error {
				if _, err := tx.Exec(t.Context(), `SELECT`); err != nil {
					return err
				}
				if err := run(tx); err != nil {
					return err
				}
				_ = events.Publish("t", event("alone"))
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), "work has ended the transaction") {
				t.Errorf("%s of %s: got %v", name, end, err)
			}
		}
	}
	b.expect("", "")
}

// Savepoints and settings do not end a transaction.
func TestFunctionThatKeepsItsTransactionIsNotRefused(t *testing.T) {
	b := newBench(t, nil)
	err := b.inTx(func(tx pgx.Tx, events message.Publisher) error {
		for _, s := range []string{`SAVEPOINT a`, `SELEC`, `ROLLBACK TO a`, `SELECT CASE WHEN true THEN 1 END`, `RESET ALL`} {
			if _, err := tx.Exec(t.Context(), s); err != nil && s != `SELEC` {
				return err
			}
		}
		return place(t.Context(), tx, events, "a")
	})
	kit.Check(t, err)
	b.expect("a", "a")
}

// A function that changes the search path must not change the outbox.
func TestEventIsStoredInTheOutboxOfThePool(t *testing.T) {
	b := newBench(t, nil)
	b.Exec(`CREATE SCHEMA other`)
	kit.OK(t, schema.Up(t.Context(), b.DB, schema.Config{Schema: "other"}))
	err := b.inTx(func(tx pgx.Tx, events message.Publisher) error {
		if _, err := tx.Exec(t.Context(), `INSERT INTO orders (id) VALUES ('a'); SET LOCAL search_path = other`); err != nil {
			return err
		}
		return events.Publish("t", event("a"))
	})
	kit.Check(t, err)
	b.expect("a", "a")
}

// Config.Schema does not allow a hyphen, but the search path does. The tables are still
// looked for only once.
func TestTablesAreFoundOnceWhateverTheNameOfTheirSchema(t *testing.T) {
	b := newBench(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = `"my-app"` })
	b.Exec(`ALTER SCHEMA public RENAME TO "my-app"`)
	err := b.inTx(func(_ pgx.Tx, events message.Publisher) error { return events.Publish("t", event("a")) })
	if got := b.text(`SELECT message_id FROM "my-app".once_outbox`); err != nil || got != "a" {
		t.Errorf("events %q, %v", got, err)
	}
	before := b.trips.Load()
	kit.Check(t, b.inTx(func(pgx.Tx, message.Publisher) error { return nil }))
	if trips := b.trips.Load() - before; trips != 0 {
		t.Errorf("an empty transaction took %d round trips", trips)
	}
}

// Trap 117. If the database ignores the insert, Publish fails, and InTx says that its work is committed
// without the event.
func TestTrap117_IgnoredInsertIsAnError(t *testing.T) {
	b := newBench(t, nil)
	kit.Ignore(t, b.DB, "postgres", "INSERT", "once_outbox", "NEW.message_id = 'ignored'")
	publish := func(events message.Publisher) error {
		return events.Publish("orders", message.NewMessage("stored", nil), message.NewMessage("ignored", nil))
	}
	tx, err := b.pool.Begin(t.Context())
	kit.OK(t, err)
	if err := publish(pgxoutbox.Publisher(t.Context(), tx)); !errors.Is(err, dialect.ErrUnchanged) {
		t.Errorf("got %v, want ErrUnchanged", err)
	}
	kit.OK(t, tx.Rollback(t.Context()))

	err = pgxoutbox.InTx(t.Context(), b.pool, func(_ pgx.Tx, events message.Publisher) error { return publish(events) })
	if !errors.Is(err, outbox.ErrCommitUnknown) || !errors.Is(err, dialect.ErrUnchanged) ||
		!strings.Contains(err.Error(), `1 of 2 rows were not inserted in table "once_outbox"`) {
		t.Errorf("got %v, want ErrCommitUnknown and ErrUnchanged", err)
	}
	err = pgxoutbox.InTx(t.Context(), b.pool, func(tx pgx.Tx, events message.Publisher) error {
		_, err := tx.Exec(t.Context(), `SAVEPOINT s`)
		kit.OK(t, err)
		return publish(events)
	})
	if errors.Is(err, outbox.ErrCommitUnknown) || !errors.Is(err, dialect.ErrUnchanged) {
		t.Errorf("got %v, want ErrUnchanged before the commit", err)
	}
	b.expect("", "stored")
}

// A transaction keeps no more than a megabyte of messages in memory.
func TestManyMessagesAreSentBeforeTheCommit(t *testing.T) {
	b := newBench(t, nil)
	kit.OK(t, pgxoutbox.InTx(t.Context(), b.pool, func(tx pgx.Tx, events message.Publisher) error {
		for i := range 5 {
			kit.OK(t, events.Publish("orders", message.NewMessage(string(rune('a'+i)), make([]byte, 400_000))))
		}
		var stored int
		kit.OK(t, tx.QueryRow(t.Context(), `SELECT COUNT(*) FROM once_outbox`).Scan(&stored))
		if stored != 3 {
			t.Errorf("%d messages are sent before the commit, want 3", stored)
		}
		return nil
	}))
	b.expect("", "a b c d e")
}
