package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// world contains the state that remains when a process has ended: the tables, and the
// queue of the broker.
type world struct {
	*testing.T
	kit.Database

	parked *parkedrows.Store
	broker *amqp.Channel // set only if RabbitMQ is the transport
}

func newWorld(t *testing.T, db kit.Database) *world {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	w := &world{T: t, Database: db}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	number := "n INTEGER PRIMARY KEY AUTOINCREMENT"
	if db.Dialect == "postgres" {
		number = "n BIGINT GENERATED ALWAYS AS IDENTITY"
	}
	w.exec(`CREATE TABLE effects (` + number + `, message_id TEXT NOT NULL)`) // the id is not unique, so that a repeated effect is visible
	w.exec(queueTable)
	var err error
	w.parked, err = parkedrows.NewStore(db.DB, config)
	kit.OK(t, err)
	return w
}

func (w *world) exec(query string, args ...any) {
	w.Helper()
	kit.Exec(w, w, query, args...)
}

func (w *world) count(what string) (n int) {
	w.Helper()
	kit.OK(w, w.QueryRowContext(w.Context(), `SELECT COUNT(*) FROM `+what).Scan(&n))
	return n
}

// put publishes messages to the transport of a life.
func (w *world) put(l life, ids ...string) {
	w.Helper()
	for _, id := range ids {
		var err error
		msg := newMessage(id)
		switch l.Transport {
		case "queue":
			w.exec(`INSERT INTO queue (message_id) VALUES ($1)`, id)
		case "local":
			to := parkedrows.Subscription{Consumer: consumer, KeyOrder: l.KeyOrder != retry.Unordered}
			err = w.parked.DeliverTo(w.Context(), topic, []parkedrows.Subscription{to}, msg)
		default:
			err = publish(w.Context(), w.broker, l.Queue, msg)
		}
		kit.OK(w, err)
	}
}

// settled reports whether all messages are finished.
func (w *world) settled() bool {
	return w.count(`queue WHERE acked = 0`) == 0 && w.count(`once_parked WHERE state IN ('waiting', 'held')`) == 0
}

// mayBeLast contains points late in the work. A process that is killed at one of them may already
// have done all work, because it removes the rows of several messages together.
var mayBeLast = []point{{"ack", after}, {"resolve", sent}, {"resolve", done}, {"quarantine", done}}

// live runs a process for each point, and the process is killed at this point. At the end, live
// runs a process that does the remaining work.
func (w *world) live(l life, points ...point) {
	w.Helper()
	l.Dialect, l.DSN = w.Dialect, w.DSN
	w.put(l, messages...)
	for _, at := range points {
		l.Dies = at
		if status := begin(w.T, l).end(w.T); !status.Signaled() {
			w.Fatalf("%s %s: the process was not killed, it ended with %v", at.When, at.Of, status)
		}
		if w.settled() && !slices.Contains(mayBeLast, at) {
			w.Error("the killed process had done all work, so the test proves nothing")
		}
		if l.Batches != "" && at == (point{"inbox", done}) && w.count(`effects`) != len(messages) {
			w.Error("the messages did not share a transaction")
		}
	}
	l.Dies = point{}
	last := begin(w.T, l)
	kit.Eventually(w.T, patience, "everything is settled", func() bool { return w.settled() })
	last.stop(w.T)
}

// checkOnce fails the test unless each message has exactly one effect, one row in the inbox and one row
// in the outbox, and no other rows are left.
func (w *world) checkOnce(ids ...string) {
	w.Helper()
	for table, column := range map[string]string{"effects": "message_id", "once_inbox": "message_id", "once_outbox": "message_id"} {
		for _, id := range ids {
			if table == "once_outbox" {
				id += "-captured"
			}
			if n := w.count(fmt.Sprintf(`%s WHERE %s = '%s'`, table, column, id)); n != 1 {
				w.Errorf("%s is %d times in %s", id, n, table)
			}
		}
		if n := w.count(table); n != len(ids) {
			w.Errorf("%d rows in %s", n, table)
		}
	}
}

// of returns the points at a statement. There is one point for each of the given moments, except
// for moments that this dialect does not have.
func of(dialect string, statement string, when ...string) []point {
	var all []point
	for _, at := range when {
		if at != sent || dialect == "postgres" {
			all = append(all, point{statement, at})
		}
	}
	return all
}

// steps runs a test for each point. Before each test, processes are killed at the earlier points.
// With -short it runs only the test for the last point, and on SQLite only with the embedded
// transport, which is the usual transport there.
func steps(t *testing.T, db string, l life, earlier []point, points []point, check func(w *world)) {
	for i, at := range points {
		t.Run(strings.ReplaceAll(at.Of+" "+at.When, " ", "_"), func(t *testing.T) {
			t.Parallel()
			if i < len(points)-1 || db == "sqlite" && l.Transport != "local" {
				kit.Long(t)
			}
			database := kit.SQLite
			if db == "postgres" {
				database = kit.Postgres
			}
			w := newWorld(t, database(t))
			w.live(l, slices.Concat(earlier, []point{at})...)
			check(w)
		})
	}
}

func everyDatabase(t *testing.T, test func(t *testing.T, db string)) {
	for _, db := range []string{"postgres", "sqlite"} {
		t.Run(db, func(t *testing.T) { test(t, db) })
	}
}

func effectsOnce(w *world) {
	w.Helper()
	w.checkOnce(messages...)
	if n := w.count(`once_parked`); n != 0 {
		w.Errorf("%d parked rows are left", n)
	}
}

// The process is killed at each step of handling messages from its transport, from the
// delivery to the ack. Each message takes effect once.
func TestKilledAtEveryStep(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		points := []point{{"receive", before}}
		points = append(points, of(db, "inbox", before, after)...)
		points = append(points, of(db, "effect", after)...)
		points = append(points, of(db, "outbox", before, after)...)
		points = append(points, of(db, "inbox", committed, sent, done)...)
		points = append(points, of(db, "ack", before, after)...)
		steps(t, db, life{Transport: "queue"}, nil, points, effectsOnce)
	})
}

// The process is killed in a transaction whose BEGIN is sent with its first statement.
// Each message takes effect once.
func TestKilledAtEveryStepOfALazyTransaction(t *testing.T) {
	t.Parallel()
	points := of("postgres", "inbox", before, after, committed, sent, done)
	steps(t, "postgres", life{Transport: "queue", Lazy: true}, nil, points, effectsOnce)
	points = append(of("postgres", "claim", before, sent, done), of("postgres", "resolve", before, sent, done)...)
	t.Run("parked", func(t *testing.T) {
		kit.Long(t)
		steps(t, "postgres", life{Transport: "local", Lazy: true}, nil, points, effectsOnce)
	})
}

// The process is killed while several messages share a transaction, and again after
// their redelivery. Each message takes effect once. If it is killed while a whole batch
// fails, each message of the batch is in quarantine once.
func TestKilledAtEveryStepOfABatch(t *testing.T) {
	for _, way := range []string{"each", "together"} {
		batches := func(fails bool) life {
			return life{mode: mode{Batches: way}, Transport: "queue", Gather: 3 * time.Second, Fails: fails}
		}
		t.Run(way, func(t *testing.T) {
			if way != "each" {
				kit.Long(t)
			}
			everyDatabase(t, func(t *testing.T, db string) {
				steps(t, db, batches(false), nil, of(db, "inbox", after, committed, sent, done), effectsOnce)
				again := append(of(db, "claim", done), of(db, "inbox", after, sent, done)...)
				again = append(again, of(db, "resolve", before, done)...)
				steps(t, db, batches(false), []point{{"inbox", committed}}, again, effectsOnce)
				failing := append(of(db, "park", after, done), of(db, "quarantine", after, done)...)
				steps(t, db, batches(true), nil, failing, quarantinedOnce)
			})
		})
	}
}

// The process is killed once, and then another process is killed while it handles the redelivered
// message. This message is parked, acked, claimed, handled, and removed. Each message takes effect
// once.
func TestKilledAtEveryStepAfterARedelivery(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		points := of(db, "park", before, after, sent, done)
		points = append(points, of(db, "ack", before, after)...)
		points = append(points, of(db, "claim", before, sent, done)...)
		points = append(points, of(db, "inbox", after, sent, done)...)
		points = append(points, of(db, "resolve", before, after, sent, done)...)
		steps(t, db, life{Transport: "queue"}, []point{{"inbox", after}}, points, effectsOnce)
	})
}

// The process is killed while it uses the embedded transport, in which every message is
// a parked row. Each message takes effect once.
func TestKilledAtEveryStepOfTheEmbeddedTransport(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		points := of(db, "claim", before, sent, done)
		points = append(points, of(db, "inbox", after, sent, done)...)
		points = append(points, of(db, "resolve", before, sent, done)...)
		steps(t, db, life{Transport: "local"}, nil, points, effectsOnce)
	})
}

// The process of a durable consumer is killed while it stores, commits, acks, claims,
// handles and removes messages. Each message takes effect once.
func TestKilledAtEveryStepOfADurableConsumer(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		points := []point{{"receive", before}}
		points = append(points, of(db, "park", before, after, committed, sent, done)...)
		points = append(points, of(db, "ack", before, after)...)
		points = append(points, of(db, "claim", before, committed, sent, done)...)
		points = append(points, of(db, "inbox", before, after)...)
		points = append(points, of(db, "effect", after)...)
		points = append(points, of(db, "outbox", after)...)
		points = append(points, of(db, "inbox", committed, sent, done)...)
		points = append(points, of(db, "resolve", before, after, committed, sent, done)...)
		steps(t, db, life{mode: mode{Durable: true}, Transport: "queue"}, nil, points, effectsOnce)
	})
}

// The process of a durable consumer is killed when it has handled more messages than it claims in
// advance, and has removed none of their rows. Each message takes effect once.
func TestKilledBeforeHandledRowsAreRemoved(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	w := newWorld(t, kit.EmptyPostgres(t))
	w.exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN OLD; END $$`)
	w.exec(`CREATE TRIGGER wait BEFORE DELETE ON once_parked FOR EACH ROW EXECUTE FUNCTION wait()`)
	tx := kit.Begin(t, w)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `SELECT pg_advisory_xact_lock(1)`)

	l := life{mode: mode{Durable: true}, Dialect: w.Dialect, DSN: w.DSN, Transport: "queue"}
	var ids []string
	for n := range 72 { // 4 handlers and 64 messages that are claimed in advance
		ids = append(ids, fmt.Sprintf("m%d", n))
	}
	w.put(l, ids...)
	first := begin(t, l)
	kit.Eventually(t, patience, "all messages are handled", func() bool { return w.count(`effects`) == len(ids) })
	kit.OK(t, first.Process.Kill())
	first.end(t)
	if n := w.count(`once_parked`); n != len(ids) {
		t.Errorf("%d rows are left, want %d", n, len(ids))
	}
	kit.OK(t, tx.Rollback())
	w.exec(`DROP TRIGGER wait ON once_parked`)

	last := begin(t, l)
	kit.Eventually(t, patience, "everything is settled", func() bool { return w.settled() })
	last.stop(t)
	w.checkOnce(ids...)
	if n := w.count(`once_parked`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// The process is killed while it parks and quarantines failing messages. Each message is in
// quarantine once, and no message has taken effect.
func TestKilledAtEveryStepOfAFailure(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		points := of(db, "park", before, after, sent, done)
		points = append(points, of(db, "ack", before, after)...)
		points = append(points, of(db, "quarantine", before, after, sent, done)...)
		steps(t, db, life{Transport: "queue", Fails: true}, nil, points, quarantinedOnce)
		points = append(of(db, "postpone", before, after, sent, done), of(db, "quarantine", before, after, sent, done)...)
		t.Run("postponed", func(t *testing.T) {
			kit.Long(t)
			steps(t, db, life{Transport: "local", Fails: true}, nil, points, quarantinedOnce)
			steps(t, db, life{mode: mode{Durable: true}, Transport: "queue", Fails: true}, nil, points, quarantinedOnce)
		})
	})
}

func quarantinedOnce(w *world) {
	w.Helper()
	w.checkOnce()
	for _, id := range messages {
		if n := w.count(`once_parked WHERE state = 'quarantined' AND reason = 'exhausted' AND message_id = '` + id + `'`); n != 1 {
			w.Errorf("%s is in quarantine %d times", id, n)
		}
	}
	if n := w.count(`once_parked`); n != len(messages) {
		w.Errorf("%d parked rows", n)
	}
}

// neighbours is the number of messages before and after the message that ends the
// process.
const neighbours = 20

// Trap 48. If the handler of a message calls os.Exit, the message goes to quarantine
// when its crash budget is used up. Other messages, which were prefetched or claimed
// together with this message, do not go to quarantine. The rest of the queue is
// handled.
func TestMessageThatEndsTheProcessIsQuarantined(t *testing.T) {
	eachMode(t, func(w *world, l life) {
		var ids []string
		for n := range neighbours {
			if n == 3 {
				w.put(l, killer)
			}
			id := fmt.Sprintf("m%02d", n)
			ids = append(ids, id)
			w.put(l, id)
		}
		crashes := 0
		for p := begin(w.T, l); ; p = begin(w.T, l) {
			kit.Eventually(w.T, patience, "the process has ended, or all messages are settled", func() bool {
				return p.over() || w.settled() && w.count(`effects`) == neighbours && w.count(`once_parked WHERE state = 'quarantined'`) == 1
			})
			if !p.over() {
				p.stop(w.T)
				break
			}
			if status := p.end(w.T); status.ExitStatus() != exitStatus {
				w.Fatalf("the process ended with %v", status)
			}
			if crashes++; crashes > 3*crashBudget {
				w.Fatalf("the process ended %d times", crashes)
			}
		}
		w.checkOnce(ids...)
		if n := w.count(`once_parked`); n != 1 || w.count(`once_parked WHERE message_id = 'killer' AND reason = 'crashed'`) != 1 {
			w.Errorf("%d parked rows are left", n)
		}
		// A broker's first delivery of a message does not count as a crash, unless the
		// message is stored before it is handled.
		if most := crashBudget + 1; crashes < crashBudget || crashes > most {
			w.Errorf("the process ended %d times, want %d or %d", crashes, crashBudget, most)
		}
	})
}
