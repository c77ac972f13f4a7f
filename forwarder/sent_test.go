package forwarder_test

import (
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func keeping(config schema.Config) forwarder.Config {
	cfg := quick(config)
	cfg.KeepSent = time.Minute
	return cfg
}

func sentLog(t *testing.T, db *sql.DB, config schema.Config) *forwarder.Sent {
	t.Helper()
	log, err := forwarder.NewSent(db, config)
	require.NoError(t, err)
	return log
}

func sent(t *testing.T, db *sql.DB) int {
	t.Helper()
	return count(t, db, `SELECT COUNT(*) FROM once_outbox_sent`)
}

func TestWhatIsSentIsKept(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		m := msg("m", "key")
		m.Payload = []byte{0, 255, '\n'}
		m.Metadata["a"] = "ü"
		put(t, db, config, "topic", m, msg("free", ""))
		start(t, db, newBroker(), keeping(config))
		drained(t, db)
		require.Equal(t, 2, sent(t, db))

		log := sentLog(t, db, config)
		listed, err := log.List(t.Context(), forwarder.Filter{MessageID: "m"})
		require.NoError(t, err)
		require.Len(t, listed, 1)
		require.Nil(t, listed[0].Payload)
		got, err := log.Get(t.Context(), listed[0].ID)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), got.CreatedAt, time.Minute)
		require.WithinDuration(t, time.Now(), got.SentAt, time.Minute)
		require.Equal(t, forwarder.SentMessage{
			Stored: forwarder.Stored{
				ID: got.ID, Position: 1, MessageID: "m", Topic: "topic", OrderingKey: "key", Payload: []byte{0, 255, '\n'}, Size: 3,
				Metadata: message.Metadata{"a": "ü", outbox.OrderingKey: "key"}, CreatedAt: got.CreatedAt,
			},
			SentAt: got.SentAt,
		}, got)
		_, err = log.Get(t.Context(), 4711)
		require.ErrorIs(t, err, forwarder.ErrNotFound)
		free, err := log.List(t.Context(), forwarder.Filter{AfterID: got.ID - 1, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, got.ID, free[0].ID)
	})
}

func TestNothingIsKeptByDefault(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		put(t, db, config, "t", msg("a", ""))
		start(t, db, newBroker(), quick(config))
		drained(t, db)
		require.Zero(t, sent(t, db))
	})
}

func TestKeepSentIsValidated(t *testing.T) {
	db := postgres(t)
	for _, d := range []time.Duration{-time.Hour, time.Second} {
		_, err := forwarder.New(db, newBroker(), forwarder.Config{KeepSent: d})
		require.ErrorContains(t, err, "KeepSent")
	}
}

func TestFiltersOfWhatWasSent(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		put(t, db, config, "t", described())
		put(t, db, config, "bare", msg("bare", ""))
		cfg := keeping(config)
		cfg.KeepSent = time.Hour
		start(t, db, &pipelined{broker: newBroker()}, cfg)
		drained(t, db)
		// Not so old that it is deleted, and yet in another order than by id.
		const second = `message_id = 'bare'`
		age(t, db, "once_outbox_sent", "sent_at", 10*time.Minute, second)
		all := filters(int64(count(t, db, `SELECT id FROM once_outbox_sent WHERE message_id = 'described'`)))
		early := time.Now().Add(-5 * time.Minute)
		all["SentAfter"] = [2]forwarder.Filter{{SentAfter: early}, {SentAfter: early.Add(time.Hour)}}
		all["SentBefore"] = [2]forwarder.Filter{{SentAfter: early, SentBefore: early.Add(time.Hour)}, {SentBefore: early.Add(-time.Hour)}}
		log := sentLog(t, db, config)
		for name, pair := range all {
			for i, f := range pair {
				found, err := log.List(t.Context(), f)
				require.NoError(t, err, name)
				n, err := log.Count(t.Context(), f)
				require.NoError(t, err, name)
				require.Len(t, found, n, name)
				require.Len(t, found, 1-i, name)
				if i == 0 {
					require.Equal(t, "described", found[0].MessageID, name)
				}
			}
		}
		old, err := log.List(t.Context(), forwarder.Filter{SentBefore: early})
		require.NoError(t, err)
		require.Len(t, old, 1)
		require.Equal(t, "bare", old[0].MessageID)

		for field, f := range map[string]forwarder.Filter{
			"Reason":       {Reason: forwarder.ReasonExhausted},
			"FailedBefore": {FailedBefore: early},
			"not after":    {SentAfter: early, SentBefore: early},
		} {
			_, err = log.Count(t.Context(), f)
			require.ErrorContains(t, err, field)
			_, err = log.List(t.Context(), f)
			require.ErrorContains(t, err, field)
			_, err = log.Resend(t.Context(), ann, f, forwarder.Plan{})
			require.ErrorContains(t, err, field)
		}
	})
}

func TestWhatWasSentIsSentAgain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		m := described()
		m.Payload = []byte{0, 255}
		put(t, db, config, "t", m, msg("other", ""))
		f := start(t, db, &pipelined{broker: b}, keeping(config))
		drained(t, db)
		log := sentLog(t, db, config)
		only := forwarder.Filter{MessageID: "described"}

		report, err := log.DryRun(t.Context(), only, forwarder.Plan{})
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 1, Replayed: 1}, report)
		_, err = log.Resend(t.Context(), ann, forwarder.Filter{}, forwarder.Plan{})
		require.ErrorContains(t, err, "All")
		_, err = log.Resend(t.Context(), forwarder.Act{}, only, forwarder.Plan{})
		require.ErrorContains(t, err, "Actor")
		report, err = log.Resend(t.Context(), ann, only, forwarder.Plan{Remembered: time.Nanosecond, Rate: 1000})
		require.NoError(t, err)
		require.Len(t, report.Skipped, 1, "consumers do not remember it")
		require.Empty(t, audits(t, db))
		require.Equal(t, 2, sent(t, db))

		id := count(t, db, `SELECT id FROM once_outbox_sent WHERE message_id = 'described'`)
		report, err = log.Resend(t.Context(), ann, only, forwarder.Plan{})
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 1, Replayed: 1}, report)
		eventually(t, "it is sent again", func() bool { return sent(t, db) == 3 })
		require.NoError(t, f.Close())
		require.Equal(t, 2, b.tries("described"))
		require.Equal(t, b.stored[0].payload, b.stored[2].payload)
		require.Equal(t, b.stored[0].metadata, b.stored[2].metadata)
		require.Equal(t, []string{fmt.Sprintf("ann | resend | sent:%d | described | the queue is back", id)}, audits(t, db))

		// A copy may have been sent, whatever becomes of it.
		_, err = log.Resend(t.Context(), ann, forwarder.Filter{MessageID: "described", Limit: 1}, forwarder.Plan{})
		require.NoError(t, err)
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE unknown`))
	})
}

func TestTheSentLogForgets(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const old = 2500
		series := `generate_series(1, 2501) AS n`
		if config.Dialect == schema.SQLite {
			series = `(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 2501) SELECT n FROM s) AS s`
		}
		exec(t, db, `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
			SELECT n, 'm', 't', '', '{}', `+now(t, db)+` FROM `+series+` ORDER BY n`)
		age(t, db, "once_outbox_sent", "sent_at", 2*time.Minute, fmt.Sprint("position <= ", old))
		b := newBroker()
		start(t, db, b, keeping(config))
		put(t, db, config, "t", msg("new", ""))
		eventually(t, "the old ones are gone", func() bool { return sent(t, db) == 2 && pending(t, db) == 0 })
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_outbox_sent WHERE message_id = 'new'`))
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_outbox_sent WHERE position = 2501`))

		age(t, db, "once_outbox_sent", "sent_at", 2*time.Minute, "message_id = 'm'")
		eventually(t, "it goes on", func() bool { return sent(t, db) == 1 })
	})
}

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// What the docs say about looking for what is missing does find it.
func TestQueriesOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/operating-the-forwarder.md")
	require.NoError(t, err)
	blocks := sqlBlock.FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 2)

	db := postgres(t)
	exec(t, db, `CREATE TABLE orders (id text, placed_at timestamptz NOT NULL DEFAULT now())`)
	exec(t, db, `INSERT INTO orders (id) VALUES ('sent'), ('pending'), ('dead'), ('missing')`)
	put(t, db, schema.Config{}, "orders.placed", msg("sent-placed", ""), msg("handled-placed", ""))
	f := start(t, db, newBroker(), keeping(schema.Config{}))
	drained(t, db)
	require.NoError(t, f.Close())
	put(t, db, schema.Config{}, "orders.placed", msg("pending-placed", ""))
	bury(t, db, msg("dead-placed", ""))
	age(t, db, "once_outbox_sent", "sent_at", time.Hour, "1 = 1")
	exec(t, db, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('handled-placed', 'payments', '')`)

	for i, want := range []string{"missing", "sent-placed"} {
		query := `SELECT COUNT(*), MIN(` + []string{"id", "message_id"}[i] + `) FROM (` + blocks[i][1] + `) AS found`
		var (
			n     int
			found string
		)
		require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n, &found))
		require.Equal(t, 1, n)
		require.Equal(t, want, found)
	}
}
