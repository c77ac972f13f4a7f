package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// drivers contains functions that open a PostgreSQL database, one for each driver.
var drivers = map[string]func(dsn string) (*sql.DB, error){
	"libpq": func(dsn string) (*sql.DB, error) {
		connector, err := pq.NewConnector(dsn)
		return sql.OpenDB(connector), err
	},
	"libpq with lazytx": func(dsn string) (*sql.DB, error) {
		connector, err := pq.NewConnector(dsn)
		return sql.OpenDB(lazytx.Connector(connector)), err
	},
	"pgx": func(dsn string) (*sql.DB, error) {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		return sql.OpenDB(stdlib.GetConnector(*config)), nil
	},
	"pgx with lazytx": func(dsn string) (*sql.DB, error) {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		return sql.OpenDB(lazytx.Connector(stdlib.GetConnector(*config))), nil
	},
}

// These messages differ in how their transactions end. Each call of the handler registers a
// function with AfterCommit, and then fails if the message requires a failure.
const (
	applied     = "applied"     // succeeds immediately
	twice       = "twice"       // is delivered twice
	retried     = "retried"     // fails in all immediate attempts, and is parked
	uncommitted = "uncommitted" // the first commit fails
	panicking   = "panicking"   // the first call panics
	hopeless    = "hopeless"    // every call fails
	unwritable  = "unwritable"  // every call returns a message that the outbox can never store
)

var afterCommitKinds = []string{applied, twice, retried, uncommitted, panicking, hopeless, unwritable}

// afterCommit contains the handler of a consumer. It records the calls of the functions that the
// handler registers with AfterCommit.
type afterCommit struct {
	*testing.T

	watcher *sql.DB // a connection that is not in the transaction

	mu       sync.Mutex
	attempts map[string]int
	calls    map[string]int
	early    []string // messages whose function did not see the effect
}

// handle registers a function with AfterCommit, writes the effect, and fails if the message must
// fail in this attempt.
func (a *afterCommit) handle(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	id := msg.UUID
	a.mu.Lock()
	a.attempts[id]++
	attempt := a.attempts[id]
	a.mu.Unlock()
	if err := dedup.AfterCommit(ctx, func() { a.called(id) }); err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, id); err != nil {
		return nil, err
	}
	switch {
	case id == hopeless:
		return nil, retry.Permanent(errors.New("no hope"))
	case id == retried && attempt <= 2:
		return nil, errors.New("try again")
	case id == panicking && attempt == 1:
		panic("on purpose")
	case id == uncommitted && attempt == 1:
		_, err := tx.ExecContext(ctx, `INSERT INTO children VALUES ('no such parent')`)
		return nil, err
	case id == unwritable:
		return []*message.Message{once.To("t", message.NewMessage("", nil))}, nil
	}
	return nil, nil
}

func (a *afterCommit) called(id string) {
	var seen int
	err := a.watcher.QueryRowContext(a.Context(), `SELECT COUNT(*) FROM effects WHERE message_id = $1`, id).Scan(&seen)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[id]++
	if err != nil || seen != 1 {
		a.early = append(a.early, fmt.Sprintf("%s sees %d effects (%v)", id, seen, err))
	}
}

func (a *afterCommit) count(query string) (n int) {
	if err := a.watcher.QueryRowContext(a.Context(), `SELECT COUNT(*) FROM `+query).Scan(&n); err != nil {
		return -1
	}
	return n
}

// afterCommitModes are the ways to add a handler.
var afterCommitModes = map[string]func(c *once.Consumer, router *message.Router, name string, sub message.Subscriber, a *afterCommit){
	"one by one": func(c *once.Consumer, router *message.Router, name string, sub message.Subscriber, a *afterCommit) {
		c.AddHandler(router, name, "t", sub, a.handle)
	},
	"in batches": func(c *once.Consumer, router *message.Router, name string, sub message.Subscriber, a *afterCommit) {
		c.AddHandlerInBatches(router, name, "t", sub, a.handle)
	},
	"batch handler": func(c *once.Consumer, router *message.Router, name string, sub message.Subscriber, a *afterCommit) {
		c.AddBatchHandler(router, name, "t", sub,
			func(ctx context.Context, tx *sql.Tx, msgs []*message.Message) (produced []*message.Message, err error) {
				for _, msg := range msgs {
					some, err := a.handle(ctx, tx, msg)
					if err != nil {
						return nil, err
					}
					produced = append(produced, some...)
				}
				return produced, nil
			})
	},
}

// In each mode and with each driver, a function of AfterCommit is called exactly once for each
// message that takes effect, after the effect is committed. It is never called for duplicates, or
// for transactions that were rolled back or whose commit failed.
func TestAfterCommitInEachMode(t *testing.T) {
	t.Parallel()
	for driver, open := range drivers {
		for mode, add := range afterCommitModes {
			for storage, durable := range map[string][]string{"direct": nil, "durable": {"payments"}} {
				t.Run(driver+"/"+mode+"/"+storage, func(t *testing.T) {
					if driver != "libpq with lazytx" && (mode != "in batches" || storage != "durable") {
						kit.Long(t)
					}
					t.Parallel()
					runAfterCommit(t, open, durable, add)
				})
			}
		}
	}
}

func runAfterCommit(t *testing.T, open func(dsn string) (*sql.DB, error), durable []string,
	add func(c *once.Consumer, router *message.Router, name string, sub message.Subscriber, a *afterCommit),
) {
	t.Helper()
	database := kit.Postgres(t)
	db, err := open(database.DSN)
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(8)
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	a := &afterCommit{T: t, watcher: database.DB, attempts: make(map[string]int), calls: make(map[string]int)}
	for _, query := range []string{
		`CREATE TABLE effects (message_id text)`, `CREATE TABLE parents (id text PRIMARY KEY)`,
		`CREATE TABLE children (parent text REFERENCES parents DEFERRABLE INITIALLY DEFERRED)`,
	} {
		kit.Exec(t, db, query)
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		DurableConsumers: durable,
		Dedup:            dedup.Config{Batch: dedup.Batch{Size: len(afterCommitKinds)}},
		Retry: retry.Config{
			Policy:       retry.Policy{Immediate: 1, Delayed: 5, Base: 10 * time.Millisecond},
			PollInterval: 20 * time.Millisecond,
		},
		Logger: kit.Logger(t),
	})
	kit.OK(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(t, err)
	sub := kit.NewSubscriber()
	add(consumer, router, "payments", sub, a)
	ended := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
	select {
	case <-router.Running():
	case err := <-ended:
		t.Fatal(err)
	}
	defer func() {
		kit.Check(t, errors.Join(router.Close(), <-ended))
	}()

	deliver := func(ids ...string) { // delivers all messages at the same time, and waits for their acks
		var acked sync.WaitGroup
		for _, id := range ids {
			acked.Go(func() {
				msg := message.NewMessage(id, []byte(id))
				sub.Messages <- msg
				select {
				case <-msg.Acked():
				case <-msg.Nacked():
					t.Errorf("%s was nacked", id)
				case <-time.After(patience):
					t.Errorf("%s was not acked in time", id)
				}
			})
		}
		acked.Wait()
	}
	deliver(afterCommitKinds...)
	settled := func() bool {
		return a.count(`effects`) == len(afterCommitKinds)-2 && a.count(`once_parked WHERE state = 'waiting'`) == 0
	}
	kit.Eventually(t, patience, "all messages but two take effect", settled)
	deliver(twice, applied, retried)
	kit.Eventually(t, patience, "the duplicates are ignored", settled)

	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range afterCommitKinds {
		want := 1
		if id == hopeless || id == unwritable {
			want = 0
		}
		if a.calls[id] != want {
			t.Errorf("%s: called %d times in %d attempts, want %d", id, a.calls[id], a.attempts[id], want)
		}
	}
	if len(a.early) > 0 {
		t.Errorf("functions of AfterCommit that did not see the committed effect: %q", a.early)
	}
	if n := a.attempts[uncommitted]; n < 2 {
		t.Errorf("the failed commit was not tried again: %d attempts", n)
	}
}
