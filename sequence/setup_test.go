package sequence_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

var errHandler = errors.New("handler failed")

// bench is a consumer of the embedded transport, with its own tables.
type bench struct {
	*kit.Bench

	parked     *parkedrows.Store
	transport  *embedded.Transport
	poison     *poison.Store
	quarantine *quarantine.Entries
	order      retry.KeyOrder
	poll       time.Duration                         // 0 means a short interval
	atOnce     int                                   // number of messages that are handled at the same time; 0 means the default
	decided    func(msg *message.Message, err error) // called after the message's transaction has ended, and before the message is parked
	end        func()
}

// handler is called in the transaction of the message, before the effect is written.
type handler func(msg *message.Message) error

// eachDatabase runs test with each kind of database.
func eachDatabase(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(t, newBench(t, db)) })
}

func newBench(t *testing.T, db kit.Database) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, db, schema.Config{})}
	var err error
	b.parked, err = parkedrows.NewStore(db.DB, b.Config)
	if err == nil {
		b.transport, err = embedded.New(db.DB, embedded.Config{Schema: b.Config})
	}
	if err == nil {
		b.poison, err = poison.New(db.DB, poison.Config{Schema: b.Config})
	}
	if err == nil {
		b.quarantine, err = quarantine.New(db.DB, operate.Config{Schema: b.Config})
	}
	kit.OK(t, err)
	number := "n INTEGER PRIMARY KEY AUTOINCREMENT"
	if db.Dialect == "postgres" {
		number = "n BIGINT GENERATED ALWAYS AS IDENTITY"
	}
	b.Exec(`CREATE TABLE effects (` + number + `, message_id TEXT NOT NULL)`)
	return b
}

// change updates the parked rows that are not claimed. It returns the number of updated
// rows.
func (b *bench) change(set string) (rows int64) {
	b.Helper()
	result, err := b.ExecContext(context.WithoutCancel(b.Context()), `UPDATE once_parked SET `+set+` WHERE token IS NULL`)
	if err == nil {
		rows, err = result.RowsAffected()
	}
	kit.OK(b, err)
	return rows
}

// ago returns an SQL expression for the time that was the given number of seconds ago,
// by the database's clock.
func (b *bench) ago(seconds int) string {
	if b.Dialect == "sqlite" {
		return fmt.Sprintf(`(unixepoch() - %d) * 1000`, seconds)
	}
	return fmt.Sprintf(`now() - interval '%d seconds'`, seconds)
}

// run runs the consumer until b.end is called or the test ends.
func (b *bench) run(config sequence.Config, h handler) {
	b.Helper()
	config.Schema, config.Tx = b.Config, dedup.TxFromContext
	order, err := sequence.New(config)
	kit.OK(b, err)
	retries, err := retry.New(b.DB, retry.Config{
		Schema: b.Config, KeyOrder: b.order, Concurrency: b.atOnce,
		PollInterval: cmp.Or(b.poll, 20*time.Millisecond), Logger: kit.Logger(b.T),
		Policy: retry.Policy{Immediate: -1, Delayed: 2, Base: 50 * time.Millisecond, Factor: 1, Jitter: -1},
	})
	kit.OK(b, err)
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config})
	kit.OK(b, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(b, err)
	router.AddMiddleware(b.poison.Middleware, retries.Middleware, b.tell, inbox.Middleware, order.Middleware)
	router.AddConsumerHandler("projection", "accounts", retries.Subscriber("projection", b.transport.Subscriber()),
		func(msg *message.Message) error {
			if h != nil {
				if err := h(msg); err != nil {
					return err
				}
			}
			tx, _ := dedup.TxFromContext(msg.Context())
			return effect(msg.Context(), tx, msg.UUID)
		})
	stopped := kit.Go(func() error { return router.Run(context.WithoutCancel(b.Context())) })
	<-router.Running()
	done := false
	b.end = func() {
		if done {
			return
		}
		done = true
		kit.Check(b, errors.Join(router.Close(), <-stopped))
	}
	b.Cleanup(b.end)
}

func (b *bench) tell(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if b.decided != nil {
			b.decided(msg, err)
		}
		return produced, err
	}
}

func effect(ctx context.Context, tx *sql.Tx, id string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, id)
	return err
}

// event returns a message. name determines its contents: a3 is version 3 of aggregate a.
func event(name string) *message.Message {
	msg := message.NewMessage(name, []byte("body of "+name))
	msg.Metadata[meta.AggregateType] = "account"
	msg.Metadata[meta.AggregateID] = name[:1]
	msg.Metadata[meta.AggregateVersion] = name[1:]
	msg.Metadata[meta.OrderingKey] = name[:1]
	return msg
}

// publish publishes events in the given order.
func (b *bench) publish(names ...string) {
	b.Helper()
	for _, name := range names {
		kit.OK(b, b.transport.Publish("accounts", event(name)))
	}
}

// effects returns the ids of the messages that had an effect on the aggregate, in
// order.
func (b *bench) effects(aggregate string) string {
	b.Helper()
	rows, err := b.QueryContext(context.WithoutCancel(b.Context()), `SELECT message_id FROM effects ORDER BY n`)
	kit.OK(b, err)
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		kit.OK(b, rows.Scan(&id))
		if strings.HasPrefix(id, aggregate) {
			ids = append(ids, id)
		}
	}
	kit.OK(b, rows.Err())
	return strings.Join(ids, " ")
}

// entries returns the parked rows in the given state, or all rows if state is "".
func (b *bench) entries(state string) []rows.Row {
	b.Helper()
	return rows.Parked(b, b.parked, state)
}

// quarantined returns the entries of the quarantine. It fails the test if their number is
// not n.
func (b *bench) quarantined(n int) []rows.Row {
	b.Helper()
	entries := b.entries(parkedrows.Quarantined)
	if len(entries) != n {
		b.Fatalf("%d entries, want %d: %+v", len(entries), n, entries)
	}
	return entries
}

// settle waits until no message is waiting or held.
func (b *bench) settle() {
	b.Helper()
	b.Eventually("nothing waits", func() bool { return len(b.entries(parkedrows.Waiting))+len(b.entries(parkedrows.Held)) == 0 })
}

// replay replays an entry of the quarantine, and waits until no message is waiting or
// held.
func (b *bench) replay(entry rows.Row) {
	b.Helper()
	kit.OK(b, b.quarantine.Replay(b.Context(), operate.Act{Actor: "test"}, entry.ID))
	b.settle()
}

// postpone makes n held messages due in an hour. After that, such a message becomes due earlier
// only when the version before it is applied.
func (b *bench) postpone(n int64) {
	b.Helper()
	b.Eventually("they wait for an hour", func() bool { return b.change(`due_at = `+b.ago(-3600)) == n })
}

// early waits until n messages are held because they are early.
func (b *bench) early(n int) {
	b.Helper()
	b.Eventually(fmt.Sprintf("%d are held", n), func() bool {
		var early int
		kit.OK(b, b.QueryRowContext(context.WithoutCancel(b.Context()),
			`SELECT COUNT(*) FROM once_parked WHERE early_since IS NOT NULL AND state = 'waiting'`).Scan(&early))
		return early == n
	})
}

// applied checks which messages had an effect on the aggregate.
func (b *bench) applied(aggregate, want string) {
	b.Helper()
	if got := b.effects(aggregate); got != want {
		b.Errorf("effects %s, want %s", got, want)
	}
}
