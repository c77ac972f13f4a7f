package dead_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

var (
	ann        = operate.Act{Actor: "ann", Why: "the queue is back"}
	everything = operate.Filter{All: true}
)

// bench is a database that contains the tables of this library.
type bench struct {
	*kit.Bench

	letters *dead.Letters
	log     *dead.SentLog
}

// eachDatabase runs test against each kind of database.
func eachDatabase(t *testing.T, test func(b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(newBench(t, db, schema.Config{})) })
}

// eachSentLog is like eachDatabase, and also runs test with a sent log by day.
func eachSentLog(t *testing.T, test func(b *bench)) {
	t.Helper()
	eachDatabase(t, test)
	t.Run("by day", func(t *testing.T) {
		db := kit.Postgres(t)
		kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{Sent: schema.ByDay}))
		b := newBench(t, db, schema.Config{})
		kit.OK(t, kit.Err(b.log.SweepDays(t.Context(), 100*24*time.Hour)))
		test(b)
	})
}

func newBench(t *testing.T, db kit.Database, config schema.Config) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, db, config)}
	b.letters, b.log = b.remembering(0)
	return b
}

// remembering returns the letters and the log, configured for consumers that remember
// ids for the retention.
func (b *bench) remembering(retention time.Duration) (*dead.Letters, *dead.SentLog) {
	b.Helper()
	config := operate.Config{Schema: b.Config, InboxRetention: retention}
	letters, err := dead.New(b.DB, config)
	kit.OK(b, err)
	log, err := dead.NewSentLog(b.DB, config)
	kit.OK(b, err)
	return letters, log
}

// sentPage returns a page of the sent log.
func (b *bench) sentPage(f operate.Filter) operate.Page[dead.SentMessage] {
	b.Helper()
	page, err := b.log.List(b.Context(), f)
	kit.OK(b, err)
	return page
}

// counts returns the report without the ID and the state of the replay.
func counts(r operate.Replay) operate.Report {
	r.ID, r.State = 0, ""
	return r.Report
}

func (b *bench) pending() int { b.Helper(); return b.Count(`once_outbox`) }
func (b *bench) dead() int    { b.Helper(); return b.Count(`once_outbox_dead`) }

func (b *bench) wantPending(n int) { b.Helper(); b.WantCount(n, `once_outbox`) }
func (b *bench) wantDead(n int)    { b.Helper(); b.WantCount(n, `once_outbox_dead`) }

func (b *bench) sent() int { b.Helper(); return b.Number(`SELECT COUNT(*) FROM once_outbox_sent`) }

// now returns an SQL expression for the current time of the database, in the format of
// the columns that contain times.
func (b *bench) now() string {
	if b.SQLite() {
		return `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
	}
	return `now()`
}

// age makes the times in a column of a table earlier.
func (b *bench) age(table, column string, by time.Duration, where string) {
	b.Helper()
	earlier := fmt.Sprintf(`%s - %d`, column, by.Milliseconds())
	if !b.SQLite() {
		earlier = fmt.Sprintf(`%s - interval '1 millisecond' * %d`, column, by.Milliseconds())
	}
	b.Exec(`UPDATE ` + table + ` SET ` + column + ` = ` + earlier + ` WHERE ` + where)
}

// msg returns a message with an ordering key, or without one if key is empty.
func msg(id, key string) *message.Message {
	m := message.NewMessage(id, []byte("payload of "+id))
	if key != "" {
		outbox.SetOrderingKey(m, key)
	}
	return m
}

func messages(n int) (msgs []*message.Message) {
	for i := range n {
		msgs = append(msgs, msg(fmt.Sprint(i), ""))
	}
	return msgs
}

// insertDead inserts dead letters with the ids 1, 2, and so on, without a forwarder.
func (b *bench) insertDead(msgs ...*message.Message) {
	b.Helper()
	b.insert(`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at,
		attempts, last_error, reason, fingerprint, unknown, `+outboxrow.LabelColumns+`)
		SELECT $1, $2, 't', $3, $4, o.metadata, `+b.now()+`, 20, 'no queue', 'exhausted', 'exhausted: no queue', 1 = 0, `+b.labels(), msgs)
}

// record inserts messages into the sent log, without a forwarder.
func (b *bench) record(topic string, msgs ...*message.Message) {
	b.Helper()
	b.insert(`INSERT INTO once_outbox_sent (position, message_id, topic, ordering_key, payload, metadata, created_at,
		`+outboxrow.LabelColumns+`)
		SELECT $1, $2, '`+topic+`', $3, $4, o.metadata, `+b.now()+`, `+b.labels(), msgs)
}

// labels returns the end of an INSERT statement. It selects the labels from the
// message's metadata, which is the parameter $5 of the statement.
func (b *bench) labels() string {
	d := kit.Dialect(b, b.Config)
	labels, join := outboxrow.Labels(d)
	metadata := `$5`
	if !b.SQLite() {
		metadata = `CAST($5 AS json)`
	}
	return labels + ` FROM (SELECT ` + metadata + ` AS metadata) AS o` + join
}

func (b *bench) insert(query string, msgs []*message.Message) {
	b.Helper()
	tx := kit.Begin(b, b)
	for i, m := range msgs {
		metadata, err := json.Marshal(m.Metadata)
		kit.OK(b, err)
		kit.Exec(b, tx, query, 1000+i, m.UUID, keyOf(m), []byte(m.Payload), string(metadata))
	}
	kit.OK(b, tx.Commit())
}

func keyOf(m *message.Message) any {
	if key := m.Metadata[outbox.OrderingKey]; key != "" {
		return key
	}
	return nil
}

// publish commits messages to the outbox.
func (b *bench) publish(topic string, msgs ...*message.Message) {
	b.Helper()
	box, err := outbox.New(outbox.Config{Schema: b.Config})
	kit.OK(b, err)
	kit.OK(b, box.InTx(b.Context(), b.DB, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, msgs...)
	}))
}

// publisher records the messages that it gets, or refuses all of them for good.
type publisher struct {
	mu     sync.Mutex
	sent   []*message.Message
	refuse bool
}

type unacceptable struct{ error }

func (unacceptable) Unacceptable() bool { return true }

func (p *publisher) Publish(_ string, msgs ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return unacceptable{errors.New("too large")}
	}
	p.sent = append(p.sent, msgs...)
	return nil
}

func (p *publisher) Close() error { return nil }

// forward runs a forwarder until the outbox is empty.
func (b *bench) forward(p *publisher, keepSent time.Duration, afterDead forwarder.AfterDead) {
	b.Helper()
	f, err := forwarder.New(b.DB, p, forwarder.Config{
		Schema: b.Config, PollMax: 20 * time.Millisecond, Workers: 1, // one worker keeps the order
		KeepSent: keepSent, AfterDead: afterDead, Logger: kit.Logger(b.T),
	})
	kit.OK(b, err)
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	kit.Eventually(b.T, time.Minute, "the outbox is empty", func() bool { return b.pending() == 0 })
	kit.OK(b, f.Close())
	kit.OK(b, <-ended)
}

// unstamped returns the metadata of a sent message without the times that the forwarder
// adds.
func unstamped(msg *message.Message) message.Metadata {
	metadata := maps.Clone(msg.Metadata)
	delete(metadata, meta.CreatedAt)
	delete(metadata, meta.PublishedAt)
	return metadata
}
