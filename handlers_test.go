package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// If a name in the configuration is misspelt, its handler runs in another mode than
// configured. So a name without a handler must be logged.
func TestConfiguredNameWithoutAHandlerIsLogged(t *testing.T) {
	t.Parallel()
	db, logs := kit.SQLite(t).DB, &kit.Logs{}
	tables := schema.Config{Dialect: schema.SQLite}
	kit.OK(t, schema.Up(t.Context(), db, tables))
	config := once.ConsumerConfig{
		Schema:           tables,
		DurableConsumers: []string{"mail", "payment"},
		Dedup:            dedup.Config{Idempotent: []string{"serach", "payments", "later"}},
		Logger:           logs,
	}
	consumer, err := once.NewConsumer(db, config)
	kit.OK(t, err)
	config.Logger = nil
	another, err := once.NewConsumer(db, config) // shares the configuration and has some of the handlers
	kit.OK(t, err)
	handle := func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil }
	start := func(names ...string) (end func()) {
		t.Helper()
		router, err := message.NewRouter(message.RouterConfig{}, nil)
		kit.OK(t, err)
		transport := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
		for _, name := range names {
			of := consumer
			if name == "mail" {
				of = another
			}
			of.AddHandler(router, name, "orders.placed", transport, handle)
		}
		ended := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
		<-router.Running()
		return func() {
			kit.Check(t, errors.Join(router.Close(), <-ended))
		}
	}
	defer start("payments", "mail", "search")()

	for name, field := range map[string]string{"payment": "DurableConsumers", "serach": "Dedup.Idempotent", "later": "Dedup.Idempotent"} {
		line := `ERROR A configured consumer has no handler: check the spelling of its name consumer=` + name + ` field=` + field +
			` err=ConsumerConfig.` + field + ` has "` + name + `", the handlers are ["mail" "payments" "search"]`
		if logs.CountLine(line) != 1 {
			t.Errorf("%q is not logged once: %q", line, logs.Lines())
		}
	}
	if n := logs.Count("A configured consumer has no handler"); n != 3 {
		t.Errorf("%d names are logged, want 3: %q", n, logs.Lines())
	}

	// Another router of the same Consumer logs when it starts.
	defer start("later")()
	if n := logs.Count("A configured consumer has no handler"); n != 3+2 {
		t.Errorf("%d names are logged, want 2 more: %q", n, logs.Lines())
	}
}

// MySQLError has the form of the errors of MySQL's driver.
type MySQLError struct{ Number uint16 }

func (e *MySQLError) Error() string { return fmt.Sprintf("Error %d", e.Number) }

type busy struct{}

func (busy) Error() string { return "database is locked" }
func (busy) Code() int     { return 5 | 2<<8 } // SQLITE_BUSY_SNAPSHOT

// conflicts are the ways in which other transactions make the handler of the message
// with this id fail.
var conflicts = map[string]func(ctx context.Context, db *sql.DB, tx *sql.Tx) error{ //nolint:gochecknoglobals // a constant
	"statement": func(ctx context.Context, db *sql.DB, tx *sql.Tx) error {
		if _, err := db.ExecContext(ctx, `UPDATE hot SET n = n + 1 WHERE id = 1`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE hot SET n = n + 1 WHERE id = 1`)
		return fmt.Errorf("update: %w", err)
	},
	"commit": func(ctx context.Context, db *sql.DB, tx *sql.Tx) error { // write skew
		if _, err := tx.ExecContext(ctx, `UPDATE hot SET n = (SELECT n FROM hot WHERE id = 3) WHERE id = 2`); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, `UPDATE hot SET n = (SELECT n FROM hot WHERE id = 2) WHERE id = 3`)
		return err
	},
	"deadlock": func(ctx context.Context, _ *sql.DB, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`)
		return err
	},
	"panic": func(context.Context, *sql.DB, *sql.Tx) error { panic(&pq.Error{Code: "40001"}) },
	"mysql": func(context.Context, *sql.DB, *sql.Tx) error { return fmt.Errorf("x: %w", &MySQLError{1213}) },
	"busy":  func(context.Context, *sql.DB, *sql.Tx) error { return busy{} },
}

// Trap 111. Serialization failures and deadlocks say nothing about the message. No
// attempt is counted for them, whether they come from a statement or from COMMIT, for a
// message alone or in a batch.
func TestTrap111_SerializationFailuresAreNoAttempts(t *testing.T) {
	t.Parallel()
	for name, c := range chains {
		if name == "in order" || name == "versioned" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := kit.Postgres(t)
			for _, query := range []string{
				`CREATE TABLE hot (id int PRIMARY KEY, n int NOT NULL)`, `INSERT INTO hot VALUES (1, 0), (2, 0), (3, 0)`,
				`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`,
			} {
				kit.Exec(t, db, query)
			}
			db.SetMaxIdleConns(0) // ends the sessions that do not have the new default
			db.SetMaxIdleConns(8)
			var mu sync.Mutex
			calls := map[string]int{}
			config := c.config
			config.Poison.OnQuarantine = func(e poison.Entry) { t.Errorf("%s is quarantined: %s", e.MessageID, e.Error) }
			logs := &kit.Logs{}
			config.Logger = logs
			const failing = 6 // more than the policy allows
			in := c.start(t, db, config, func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
				mu.Lock()
				calls[msg.UUID]++
				fails := calls[msg.UUID] <= failing
				mu.Unlock()
				if conflict := conflicts[msg.UUID]; fails && conflict != nil {
					return conflict(ctx, db.DB, tx)
				}
				return nil
			})
			ids := append(slices.Collect(maps.Keys(conflicts)), "good 1", "good 2")
			sendAll(t, in, ids...)
			kit.Eventually(t, time.Minute, "all messages are handled", func() bool { return count(t, db, `effects`) == len(ids) })
			for id := range conflicts {
				if calls[id] <= failing {
					t.Errorf("%s was called %d times", id, calls[id])
				}
			}
			if n := count(t, db, `once_parked WHERE attempts > 0`); n > 0 || logs.Has("message is parked") {
				t.Errorf("attempts are counted: %q", logs.Lines())
			}
			if !logs.Has("ERROR Message is held: other transactions") ||
				!logs.Has("dedup: commit: pq: could not serialize") && name == "one by one" {
				t.Errorf("nothing is logged: %q", logs.Lines())
			}
		})
	}
}

// Trap 111. A handler that fails with such an error each time must not be tried forever.
func TestTrap111_SerializationFailuresEndAfterUnackedWait(t *testing.T) {
	t.Parallel()
	db, logs := kit.Postgres(t), &kit.Logs{}
	config := once.ConsumerConfig{Logger: logs, Retry: retry.Config{UnackedWait: 300 * time.Millisecond}}
	in := chains["one by one"].start(t, db, config, func(context.Context, *sql.Tx, *message.Message) error {
		return &pq.Error{Code: "40001", Message: "never"}
	})
	sendAll(t, in, "m1")
	kit.Eventually(t, time.Minute, "the message is in quarantine", func() bool {
		return count(t, db, `once_parked WHERE state = 'quarantined' AND attempts = 2
			AND error LIKE '%other transactions made % handler calls%never%'`) == 1
	})
}
