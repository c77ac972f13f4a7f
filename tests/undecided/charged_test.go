package undecided

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/retry"
)

var errHandler = errors.New("handler failed")

// failure is a way in which a handler fails.
type failure struct {
	handle handle
	says   []string // texts that the stored error must contain

	once     bool // the message is given up on after the first attempt
	attempts int  // number of attempts otherwise; 0 means the constant attempts
}

// inBoth contains the failures that are tested with every database.
var inBoth = map[string]failure{
	"a plain error": {says: []string{"handler failed"}, handle: func(context.Context, *sql.Tx, *message.Message) error {
		return errHandler
	}},
	"a panic": {says: []string{"handler failed"}, handle: func(context.Context, *sql.Tx, *message.Message) error {
		panic(errHandler)
	}},
	"an open result set": {says: []string{"handler failed"}, handle: leaveOpen(errHandler)},
	"an open result set, permanent": {
		says: []string{"handler failed"}, handle: leaveOpen(retry.Permanent(errHandler)), once: true,
	},
	"a time of its own, in other words": {says: []string{"too slow"}, handle: func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
		if err := tooSlow(ctx, tx); err != nil {
			return errors.New("too slow")
		}
		return nil
	}},
	"a time of its own, formatted": {says: []string{"too slow"}, handle: func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
		return fmt.Errorf("too slow: %v", tooSlow(ctx, tx)) //nolint:errorlint // %v hides the error, which is a common mistake
	}},
	"a time of its own, wrapped": {says: []string{"too slow"}, handle: func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
		return fmt.Errorf("too slow: %w", tooSlow(ctx, tx))
	}},
	"a time of its own, permanent": {
		says: []string{"too slow"}, once: true,
		handle: func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
			return retry.Permanent(fmt.Errorf("too slow: %w", tooSlow(ctx, tx)))
		},
	},
}

// leaveOpen fails with err, and leaves a result set open that still has rows.
func leaveOpen(err error) handle {
	return func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
		const many = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) SELECT i FROM n`
		rows, failed := tx.QueryContext(ctx, many) //nolint:sqlclosecheck // the test needs a result set that stays open
		if failed != nil {
			return failed
		}
		rows.Next()
		return errors.Join(err, rows.Err())
	}
}

// tooSlow executes a statement with a timeout that is too short for it. The statement
// ends by itself: on a busy machine lib/pq may send the cancel request before the server
// has received the statement, and the server then ignores the request.
func tooSlow(ctx context.Context, tx *sql.Tx) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	const slow = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT COUNT(*) FROM n`
	var n int
	err := tx.QueryRowContext(ctx, slow).Scan(&n)
	return errors.Join(err, ctx.Err())
}

func statement(query string) handle {
	return func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
		_, err := tx.ExecContext(ctx, query)
		return err
	}
}

// outcomeUnknown is part of the stored error if undecided calls of a message were charged as an
// attempt.
const outcomeUnknown = "retry: the outcome of 3 handler calls is unknown, last error: "

// inPostgres contains the failures that are tested only with PostgreSQL.
var inPostgres = map[string]failure{
	"it ends its session": {handle: statement(`SELECT pg_terminate_backend(pg_backend_pid())`), says: []string{outcomeUnknown}},
	"it ends its session, and hides the error": {handle: func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		_ = statement(`SELECT pg_terminate_backend(pg_backend_pid())`)(ctx, tx, msg)
		return nil
	}},
	"it ends its session, permanent": {once: true, handle: func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		return retry.Permanent(statement(`SELECT pg_terminate_backend(pg_backend_pid())`)(ctx, tx, msg))
	}},
	"its commit ends its session": {handle: statement(`INSERT INTO traps VALUES (1)`)},
	"no space":                    {handle: raise("53100"), says: []string{"raised 53100", outcomeUnknown}},
	"no space, permanent": {once: true, handle: func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		return retry.Permanent(raise("53100")(ctx, tx, msg))
	}},
	"a shutdown, it says": {handle: raise("57P01"), says: []string{"raised 57P01"}},
	"a lock timeout":      {handle: raise("55P03"), says: []string{"raised 55P03"}},
	"a failed transaction": {handle: func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		_ = raise("23505")(ctx, tx, msg)
		return nil
	}},
	"a cancelled statement": {handle: raise("57014"), says: []string{"raised 57014"}},
}

func raise(state string) handle {
	return statement(fmt.Sprintf(`DO $$ BEGIN RAISE EXCEPTION 'raised %[1]s' USING ERRCODE = '%[1]s'; END $$`, state))
}

// mostCalls is, for each mode, the maximum number of calls of a handler before an attempt of the
// message is counted. In batches there can be two more calls, because the message first shares a
// transaction with other messages.
var mostCalls = map[string]int{"single": 3, "durable": 3, "batch": 5, "together": 5}

// A message that keeps failing goes to quarantine after a limited number of calls, no
// matter how it fails. The other messages in flight are handled.
func TestEveryKindOfFailureIsCharged(t *testing.T) {
	t.Parallel()
	for mode := range modes {
		t.Run(mode, func(t *testing.T) {
			if mode != "single" && mode != "batch" {
				kit.Long(t)
			}
			t.Parallel()
			eachDriver(t, func(t *testing.T, db kit.Database) {
				if db.Dialect == "sqlite" && mode != "single" {
					kit.Long(t)
				}
				t.Parallel()
				failing := map[string]failure{} // key: id of the message
				w := newWorld(t, db, mode, func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
					if f, bad := failing[msg.UUID]; bad {
						return f.handle(ctx, tx, msg)
					}
					return nil
				}, set(func(c *dedup.Config) { c.IdleTimeout = idleTimeout }))
				const alone = "alone"
				maps.Copy(failing, failures(w))
				all := []string{} // ids: every kind of failure, with valid messages in between
				for name := range failing {
					all = append(all, append(numbered(name, 2), name)...)
				}
				failing[alone] = inBoth["an open result set"]
				if w.Dialect == "postgres" {
					failing[alone] = inPostgres["it ends its session"]
				}
				w.deliver(8, all...)
				for name, f := range failing {
					if name != alone {
						w.isCharged(mode, name, f, numbered(name, 2))
					}
				}
				// Only one message fails, among many valid messages.
				good := numbered(alone, 60)
				w.deliver(len(good)+1, append(append(good[:20:20], alone), good[20:]...)...)
				w.isCharged(mode, alone, failing[alone], good)
			})
		})
	}
}

// isCharged waits until the valid messages have had their effects, and the failing
// message is in quarantine. It checks how often the handler was called.
func (w *world) isCharged(mode, name string, f failure, good []string) {
	w.Helper()
	effects := `effects WHERE message_id LIKE '` + name + `: %'`
	kit.Eventually(w.T, time.Minute, name+": the valid messages are handled", func() bool { return w.count(effects) == len(good) })
	var page operate.Page[quarantine.Entry]
	kit.Eventually(w.T, time.Minute, name+": the failing message is in quarantine", func() bool {
		w.look(func() (err error) {
			page, err = w.consumer.Quarantine().List(w.Context(), operate.Filter{MessageID: name})
			return err
		})
		return len(page.Rows) > 0
	})
	for _, text := range f.says {
		if !strings.Contains(page.Rows[0].Error, text) {
			w.Errorf("%s: the entry does not say %q: %s", name, text, page.Rows[0].Error)
		}
	}
	charged := cmp.Or(f.attempts, attempts)
	if f.once {
		charged = 1
	}
	most := mostCalls[mode] * charged
	if n := w.callsOf(name); n > most {
		w.Errorf("%s: it was handled %d times, more than %d", name, n, most)
	}
	if got := page.Rows[0].Attempts; got != charged {
		w.Errorf("%s: %d attempts are charged, want %d", name, got, charged)
	}
	for _, id := range good {
		if n := w.callsOf(id); n > mostCalls[mode]*max(f.attempts, 1) {
			w.Errorf("%s: %s was handled %d times", name, id, n)
		}
	}
	if n := w.count(effects); n != len(good) {
		w.Errorf("%s: %d effects of %d", name, n, len(good))
	}
}

func failures(w *world) map[string]failure {
	all := maps.Clone(inBoth)
	if w.Dialect == "postgres" {
		maps.Copy(all, inPostgres)
		all["it idles for too long"] = failure{handle: w.idle}
		w.exec(`CREATE TABLE traps (n integer);
			CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$;
			CREATE CONSTRAINT TRIGGER trap AFTER INSERT ON traps DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION trap()`)
	}
	return all
}

// idleTimeout is the IdleTimeout of the inbox. It is so long that, even on a busy machine, no other
// transaction is idle for this time.
const idleTimeout = time.Second

// idle waits until the server has ended the session of tx, because the transaction was
// idle for too long.
func (w *world) idle(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
	var pid int
	if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 1; n > 0; <-tick.C {
		if err := w.QueryRowContext(ctx, `SELECT COUNT(*) FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&n); err != nil {
			return err
		}
	}
	return nil
}

// If the database goes down twice while a handler runs, no attempt of the message is
// counted. The policy allows only one attempt, so otherwise the message would be in
// quarantine.
func TestOutageCountsAsNoAttempt(t *testing.T) {
	for name, open := range kit.Drivers {
		for mode := range modes {
			if name != "libpq" && mode != "single" {
				continue // the errors depend on the driver, and not on the mode
			}
			t.Run(name+"/"+mode, func(t *testing.T) {
				if name != "libpq" || mode != "single" && mode != "batch" {
					kit.Long(t)
				}
				t.Parallel()
				server := kit.PrivatePostgres(t)
				db, err := open(server.DSN("postgres"))
				kit.OK(t, err)
				t.Cleanup(func() { _ = db.Close() })
				ends, restarted, up := 0, make(chan error, 2), make(chan struct{})
				isUp := sync.OnceFunc(func() { close(up) })
				w := newWorld(t, kit.Database{DB: db, Dialect: "postgres"}, mode,
					func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
						if ends++; ends > 2 {
							return nil
						}
						if ends == 2 { // the server accepts connections before Restart returns
							<-up
						}
						server.Stop()
						time.AfterFunc(300*time.Millisecond, func() { // meanwhile some calls of the handler fail
							err := server.Restart(context.WithoutCancel(t.Context()))
							isUp()
							restarted <- err
						})
						return statement(`SELECT 1`)(ctx, tx, nil)
					},
					func(c *once.ConsumerConfig) { c.Retry.Policy = retry.Policy{Immediate: -1, Delayed: -1} })
				w.deliver(1, "m")
				for range 2 {
					kit.OK(t, <-restarted)
				}
				kit.Eventually(t, time.Minute, "the message takes effect", func() bool {
					var n int // the database may not be up again yet
					return db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM effects`).Scan(&n) == nil && n == 1
				})
				page, err := w.consumer.Quarantine().List(t.Context(), operate.Filter{})
				if err != nil || len(page.Rows) > 0 || ends != 3 {
					t.Fatalf("in quarantine are %v after %d calls, %v", page.Rows, ends, err)
				}
			})
		}
	}
}
