package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { testkit.MainWithTables(m) }

const consumer = "payments"

// bench is a database with an inbox and a table of effects. This table has no unique
// constraint, so that a repeated effect is visible.
type bench struct {
	*testing.T
	testkit.Database

	config schema.Config
	box    *outbox.Outbox
	inbox  *dedup.Inbox
}

func newBench(t *testing.T, db testkit.Database, change func(*dedup.Config)) *bench {
	t.Helper()
	return newBenchIn(t, db, schema.Config{Dialect: schema.Dialect(db.Dialect)}, change)
}

func newBenchIn(t *testing.T, db testkit.Database, tables schema.Config, change func(*dedup.Config)) *bench {
	t.Helper()
	b := &bench{T: t, Database: db, config: tables}
	if err := schema.Up(t.Context(), db.DB, b.config); err != nil {
		t.Fatal(err)
	}
	b.exec(`CREATE TABLE effects (message_id text NOT NULL)`)
	var err error
	if b.box, err = outbox.New(outbox.Config{Schema: b.config}); err != nil {
		t.Fatal(err)
	}
	config := dedup.Config{Schema: b.config, Consumer: consumer, Outbox: b.box.Publisher, Logger: testkit.Logger(t)}
	if change != nil {
		change(&config)
	}
	if b.inbox, err = dedup.New(db.DB, config); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) exec(query string, args ...any) {
	b.Helper()
	if _, err := b.ExecContext(b.Context(), query, args...); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) count(what string) (n int) {
	b.Helper()
	if err := b.QueryRowContext(b.Context(), `SELECT COUNT(*) FROM `+what).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// expect checks the numbers of effects, inbox rows and outbox rows.
func (b *bench) expect(effects, done, events int) {
	b.Helper()
	if got := [3]int{b.count("effects"), b.count("once_inbox"), b.count("once_outbox")}; got != [3]int{effects, done, events} {
		b.Fatalf("effects, inbox, outbox are %v, want %v", got, [3]int{effects, done, events})
	}
}

// write writes the effect of a message through the transaction in ctx.
func write(ctx context.Context, msg *message.Message) error {
	tx, ok := dedup.TxFromContext(ctx)
	if !ok {
		return errors.New("no transaction in the context")
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ('`+msg.UUID+`')`)
	return err
}

func apply(msg *message.Message) ([]*message.Message, error) {
	return nil, write(msg.Context(), msg)
}

func kindOf(t *testing.T, err error, want disposition.Kind) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if got := disposition.Of(err).Kind; got != want {
		t.Fatalf("the verdict of %v is %d, want %d", err, got, want)
	}
}

var errHandler = errors.New("handler failed")

func terminate(t *testing.T, db *sql.DB, tx *sql.Tx) {
	t.Helper()
	var pid int
	if err := tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `SELECT pg_terminate_backend($1, 5000)`, pid); err != nil {
		t.Fatal(err)
	}
}
