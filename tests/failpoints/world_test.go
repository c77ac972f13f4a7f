package failpoints

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// world contains the state that remains when a process has ended: a database, and the
// exchanges and queues of a broker.
type world struct {
	*testing.T
	kit.Database
	scenario

	program string
	broker  *amqp.Connection // nil without a broker
	life    life
	parked  *parkedrows.Store
}

func newWorld(t *testing.T, program string, s scenario, broker kit.Broker) *world {
	t.Helper()
	w := &world{T: t, scenario: s, program: program, life: s.life}
	number := "n BIGINT GENERATED ALWAYS AS IDENTITY"
	if s.embedded {
		w.Database = kit.SQLite(t)
		number = "n INTEGER PRIMARY KEY AUTOINCREMENT"
	} else {
		database := kit.Postgres
		if s.life.Moves {
			database = kit.PostgresAlone
		}
		w.Database = database(t)
		w.life.AMQP, w.life.Prefix = broker.URL, broker.Name("life")
		var err error
		w.broker, err = amqp.Dial(broker.URL)
		kit.OK(t, err)
		t.Cleanup(func() { _ = w.broker.Close() })
	}
	w.life.Dialect, w.life.DSN = w.Dialect, w.DSN
	config := w.life.schema()
	kit.OK(t, schema.Up(t.Context(), w.DB, config))
	w.exec(`CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	w.exec(`CREATE TABLE effects (` + number + `, message_id TEXT NOT NULL)`) // the id is not unique, so that a repeated effect is visible
	var err error
	w.parked, err = parkedrows.NewStore(w.DB, config)
	kit.OK(t, err)
	return w
}

func (w *world) exec(query string) {
	w.Helper()
	kit.Exec(w, w, query)
}

func (w *world) count(what string) (n int) {
	w.Helper()
	kit.OK(w, w.QueryRowContext(w.Context(), `SELECT COUNT(*) FROM `+what).Scan(&n))
	return n
}

func (w *world) strings(query string) (all []string) {
	w.Helper()
	return kit.Lines(w, w, query)
}

// prepare creates the state that the scenario needs. Call it before the process that is
// killed begins.
func (w *world) prepare() {
	w.Helper()
	if w.seed != nil {
		w.seed(w)
	}
	if w.earlier != nil {
		w.earlier(w)
	}
}

// quarantine puts messages into quarantine.
func (w *world) quarantine(ids ...string) {
	w.Helper()
	for n, id := range ids {
		_, err := w.parked.Quarantine(w.Context(), &parkedrows.Delivery{Consumer: orders, Topic: orders}, w.life.message(n, id),
			parkedrows.Failure{Err: errors.New("it failed before"), Reason: "exhausted", Attempts: 1}, nil)
		kit.OK(w, err)
	}
}

// put commits messages to the outbox.
func (w *world) put(ids ...string) {
	w.Helper()
	l := w.life
	l.Writes = ids
	kit.OK(w, (&actor{life: l, db: w.DB}).write(w.Context(), func() {}))
}

// wanted returns the effects that must exist in the end.
func (w *world) wanted() (ids []string) {
	for _, id := range w.handled {
		ids = append(ids, id, id+"-done")
	}
	slices.Sort(ids)
	return ids
}

// underWay selects the rows of unfinished messages. If the processes do not find such a row, the
// test times out.
const underWay = `(
	SELECT message_id FROM once_outbox
	UNION ALL SELECT message_id FROM once_parked WHERE state IN ('waiting', 'held')
	UNION ALL SELECT consumer FROM once_replays WHERE state <> 'finished') AS under_way`

// settled reports whether all messages are finished, and all expected effects exist.
func (w *world) settled() bool {
	w.Helper()
	if w.count(underWay) > 0 || w.waiting() > 0 {
		return false
	}
	return w.count(`(SELECT DISTINCT message_id FROM effects) AS e`) >= len(w.wanted()) &&
		w.count(`once_parked WHERE state = 'quarantined'`) >= len(w.failed) &&
		(w.untilThen == nil || w.untilThen(w))
}

// waiting returns how many messages wait at the broker. The result is above zero while a queue is
// not declared yet.
func (w *world) waiting() (n int) {
	w.Helper()
	if w.broker == nil || w.life.NoConsumer {
		return 0
	}
	channel, err := w.broker.Channel()
	kit.OK(w, err)
	defer func() { _ = channel.Close() }()
	for _, topic := range []string{orders, done} {
		queue, err := channel.QueueDeclarePassive(w.life.Prefix+"."+topic, true, false, false, false, nil)
		if refused, ok := errors.AsType[*amqp.Error](err); ok && refused.Code == amqp.NotFound {
			return n + 1
		}
		kit.OK(w, err)
		n += queue.Messages
	}
	return n
}

// finish runs processes that are not killed, until no work is left.
func (w *world) finish() {
	w.Helper()
	for {
		p := begin(w.T, w.program, w.life, "")
		w.until(p, "everything is settled", w.settled)
		p.stop(w.T)
		if w.waiting() == 0 && w.count(underWay) == 0 { // otherwise the process has nacked duplicates when it stopped
			return
		}
	}
}

// until waits until cond returns true. It fails the test if the process ends before
// that.
func (w *world) until(p *process, what string, cond func() bool) {
	w.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-p.ended:
			w.Fatalf("the process ended with %v: %s", p.ProcessState, &p.stderr)
		case <-deadline.C:
			w.Fatalf("it was never reached that %s: unfinished %q, parked %q, effects %q, dead %q, at the broker %d", what,
				w.strings(`SELECT message_id FROM once_outbox`),
				w.strings(`SELECT consumer || ' ' || message_id || ' ' || state FROM once_parked`),
				w.strings(`SELECT message_id FROM effects`), w.strings(`SELECT message_id FROM once_outbox_dead`), w.waiting())
		}
	}
}

// audit fails the test unless every committed message had its effect once, or is in
// quarantine or a dead letter as expected. No other rows may exist.
func (w *world) audit() {
	w.Helper()
	w.same("effects", w.strings(`SELECT message_id FROM effects ORDER BY n`), w.wanted())
	w.same("orders", w.strings(`SELECT id FROM orders`), slices.Concat(w.life.Writes, w.before))
	w.same("quarantined", w.strings(`SELECT message_id FROM once_parked WHERE state = 'quarantined'`), w.failed)
	w.same("dead", w.strings(`SELECT message_id FROM once_outbox_dead`), w.dead)
	w.same("under way", w.strings(`SELECT message_id FROM `+underWay), nil)
	w.same("held", w.strings(`SELECT ordering_key FROM once_blocked_keys`), nil)
	for _, table := range []string{"once_outbox_sent", "once_inbox", "once_parked", "once_outbox_dead"} {
		if n := w.count(table + ` WHERE message_id LIKE 'undone-%'`); n > 0 {
			w.Errorf("%d rows of transactions that were rolled back are in %s", n, table)
		}
	}
	if w.check != nil {
		w.check(w)
	}
}

func (w *world) same(what string, got, want []string) {
	w.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		w.Errorf("%s: %q, not %q", what, got, want)
	}
}

// inOrder fails the test unless the orders took effect in the order of ids.
func (w *world) inOrder(ids ...string) {
	w.Helper()
	got := w.strings(`SELECT message_id FROM effects WHERE message_id NOT LIKE '%-done' ORDER BY n`)
	if !slices.Equal(got, ids) {
		w.Errorf("the messages took effect in the order %v", got)
	}
}

// audited fails the test unless the audit log contains action the given number of
// times.
func (w *world) audited(action string, times int) {
	w.Helper()
	if n := w.count(fmt.Sprintf(`once_audit WHERE action = '%s'`, action)); n != times {
		w.Errorf("%d audit rows have the action %q, want %d", n, action, times)
	}
}

func (w *world) inTx(work func(tx *sql.Tx) error) {
	w.Helper()
	tx, err := w.BeginTx(w.Context(), nil)
	if err == nil {
		err = errors.Join(work(tx), tx.Commit())
	}
	kit.OK(w, err)
}

func newMessage(id string) *message.Message { return message.NewMessage(id, []byte("body of "+id)) }

func join(ids []string) string { return "'" + strings.Join(ids, "','") + "'" }
