package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

const consumer = "payments"

// bench is a database with an inbox and a table of effects. This table has no unique
// constraint, so that a repeated effect is visible.
type bench struct {
	*kit.Bench

	box   *outbox.Outbox
	inbox *dedup.Inbox
}

// eachDatabase runs test with each kind of database.
func eachDatabase(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(t, newBench(t, db, nil)) })
}

func newBench(t *testing.T, db kit.Database, change func(*dedup.Config)) *bench {
	t.Helper()
	return newBenchIn(t, db, schema.Config{}, change)
}

func newBenchIn(t *testing.T, db kit.Database, tables schema.Config, change func(*dedup.Config)) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, db, tables)}
	b.Exec(`CREATE TABLE effects (message_id text NOT NULL)`)
	var err error
	b.box, err = outbox.New(outbox.Config{Schema: b.Config})
	kit.OK(t, err)
	config := dedup.Config{Schema: b.Config, Consumer: consumer, Outbox: b.box.Publisher, Logger: kit.Logger(t)}
	if change != nil {
		change(&config)
	}
	b.inbox, err = dedup.New(db.DB, config)
	kit.OK(t, err)
	return b
}

// expect checks the numbers of effects, inbox rows and outbox rows.
func (b *bench) expect(effects, done, events int) {
	b.Helper()
	if got := [3]int{b.Count("effects"), b.Count("once_inbox"), b.Count("once_outbox")}; got != [3]int{effects, done, events} {
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

func kindOf(t *testing.T, err error, want chain.Kind) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if got := chain.Of(err).Kind; got != want {
		t.Fatalf("the verdict of %v is %d, want %d", err, got, want)
	}
}

var errHandler = errors.New("handler failed")

func terminate(t *testing.T, db *sql.DB, tx *sql.Tx) {
	t.Helper()
	pid := kit.One[int](t, tx, `SELECT pg_backend_pid()`)
	kit.Exec(t, db, `SELECT pg_terminate_backend($1, 5000)`, pid)
}

// The check of a transaction before its commit costs a round trip. The first hundred
// transactions are checked, and then one in 32.
func TestOneTransactionIn32PaysForItsCheck(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	connector, err := pq.NewConnector(db.DSN)
	kit.OK(t, err)
	var trips kit.RoundTrips
	connector.Dialer(kit.Dialer(trips.Dial))
	db.DB = sql.OpenDB(connector)
	t.Cleanup(func() {
		kit.Check(t, db.Close())
	})
	db.SetMaxOpenConns(1)
	b := newBench(t, db, nil)
	handle := func(from, to int) int64 {
		before := trips.Load()
		for n := from; n < to; n++ {
			kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage(fmt.Sprint("m", n), nil))))
		}
		return trips.Load() - before
	}
	handle(0, 32) // in the beginning there is more to do
	checked := handle(32, 96)
	handle(96, 128)
	if later := handle(128, 192); checked-later != 62 {
		t.Errorf("64 messages take %d round trips, and later %d: want a difference of 62", checked, later)
	}
}

// A handler that has ended its transaction once probably does so again. Then all
// transactions are checked. lib/pq notices ROLLBACK itself, also in a transaction
// without a check; pgx does not.
func TestAllTransactionsAreCheckedAfterOneThatItsHandlerEnded(t *testing.T) {
	t.Parallel()
	type ending struct {
		statement string
		checked   bool
	}
	endings := map[string]ending{"found by the check": {`ROLLBACK AND CHAIN`, true}}
	if fmt.Sprintf("%T", kit.Postgres(t).Driver()) == "*pq.Driver" {
		endings["found by the driver"] = ending{`ROLLBACK`, false}
	}
	for name, c := range endings {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, kit.Postgres(t), nil)
			n := 0
			handle := func(statement string) error {
				n++
				_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					tx, _ := dedup.TxFromContext(msg.Context())
					_, err := tx.ExecContext(msg.Context(), statement)
					return nil, err
				})(message.NewMessage(fmt.Sprint("m", n), nil))
				return err
			}
			const harmless = `INSERT INTO effects (message_id) VALUES ('m')`
			for n < 130 || c.checked && n < 159 {
				kit.OK(t, handle(harmless))
			}
			if err := handle(c.statement); err == nil {
				t.Fatalf("message %d: the transaction has ended, and there is no error", n)
			}
			if err := handle(`ROLLBACK AND CHAIN`); err == nil {
				t.Errorf("message %d: the transaction was not checked", n)
			}
		})
	}
}
