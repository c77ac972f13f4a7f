package status_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/status"
)

func TestMain(m *testing.M) { testkit.MainWithTables(m) }

type bench struct {
	*testing.T

	db     *sql.DB
	reader *status.Reader
	sqlite bool
}

func eachDatabase(t *testing.T, test func(b *bench)) {
	t.Helper()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) { test(newBench(t, db)) })
}

func newBench(t *testing.T, db testkit.Database) *bench {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	require.NoError(t, schema.Up(t.Context(), db.DB, config))
	reader, err := status.New(db.DB, status.Config{Schema: config})
	require.NoError(t, err)
	return &bench{t, db.DB, reader, db.Dialect == "sqlite"}
}

func (b *bench) exec(query string) {
	b.Helper()
	_, err := b.db.ExecContext(b.Context(), query)
	require.NoError(b, err, query)
}

// in returns an expression for the time so much later, for a column of the tables.
func (b *bench) in(d time.Duration) string {
	if b.sqlite {
		return fmt.Sprintf(`CAST(unixepoch('subsec') * 1000 AS INTEGER) + %d`, d.Milliseconds())
	}
	return fmt.Sprintf(`now() + interval '1 millisecond' * %d`, d.Milliseconds())
}

// message inserts a message of the outbox.
func (b *bench) message(created, due, failing string) {
	b.Helper()
	b.exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at, failing_since)
		VALUES ('m', 't', 0, '', '{}', ` + created + `, ` + due + `, ` + failing + `)`)
}

func (b *bench) park(state, fingerprint string) {
	b.Helper()
	b.exec(`INSERT INTO once_parked (consumer, topic, message_id, ordering_key, digest, envelope, state, due_at, fingerprint, reason,
		last_failed_at) VALUES ('payments', 't', '', 'k` + fingerprint + `', '', '', '` + state + `', ` + b.in(0) + `, '` + fingerprint +
		`', 'failed', ` + b.in(0) + `)`)
}

func TestReadOfEmptyTables(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		s, err := b.reader.Read(b.Context())
		require.NoError(b, err)
		require.InDelta(b, time.Now().Unix(), s.At.Unix(), 60)
		s.At = time.Time{}
		require.Equal(b, status.Status{FreeSlots: 64}, s)
	})
}

func TestReadCountsEachState(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.message(b.in(-time.Minute), "NULL", "NULL")
		b.message(b.in(-9*time.Hour), b.in(time.Hour), "NULL")
		b.message(b.in(-9*time.Hour), b.in(time.Hour), b.in(-2*time.Hour))
		b.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 3, 3, 'refused')`)
		b.exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
			VALUES (9, 'd', 't', '', '{}', ` + b.in(0) + `, 1, 'e', 'exhausted', CAST(0 AS ` +
			map[bool]string{true: "integer", false: "boolean"}[b.sqlite] + `))`)
		b.park("waiting", "")
		b.park("held", "")
		for _, fingerprint := range []string{"a", "b1", "b2", "c"} {
			b.park("quarantined", fingerprint)
		}
		b.exec(`UPDATE once_parked SET fingerprint = 'b' WHERE fingerprint IN ('b1', 'b2')`)
		b.exec(`INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id, lease_until)
			VALUES ('', '{}', '{}', 'ann', '', 'running', 1, 1, ` + b.in(time.Hour) + `), ('', '{}', '{}', 'ann', '', 'running', 1, 1, ` +
			b.in(-time.Hour) + `), ('', '{}', '{}', 'ann', '', 'paused', 1, 1, NULL)`)

		s, err := b.reader.Read(b.Context())
		require.NoError(b, err)
		require.Equal(b, status.Count{N: 3}, s.Outbox.Pending)
		require.Equal(b, status.Count{N: 2}, s.Outbox.Deferred)
		require.Equal(b, status.Count{N: 1}, s.Outbox.Failing)
		require.Equal(b, status.Count{N: 1}, s.Outbox.BlockedKeys)
		require.InDelta(b, 60, s.Outbox.Oldest.Seconds(), 30) // the delayed ones do not count
		require.InDelta(b, 7200, s.Outbox.FailingFor.Seconds(), 30)
		require.Equal(b, []status.Count{{N: 1}, {N: 1}, {N: 1}, {N: 4}}, []status.Count{s.Dead, s.Waiting, s.Held, s.Quarantine})
		require.Equal(b, 1, s.Replays)
		require.Len(b, s.Failures, 3)
		require.Equal(b, "b", s.Failures[0].Fingerprint)
		require.Equal(b, 2, s.Failures[0].Count)
		require.Equal(b, "payments", s.Failures[0].Consumer)
		require.InDelta(b, time.Now().Unix(), s.Failures[0].LastFailedAt.Unix(), 60)

		b.exec(`UPDATE once_outbox SET due_at = ` + b.in(-3*time.Minute) + ` WHERE position = 2`)
		s, err = b.reader.Read(b.Context())
		require.NoError(b, err)
		require.InDelta(b, 180, s.Outbox.Oldest.Seconds(), 30)
	})
}

func TestForwardersAndSlots(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.exec(`INSERT INTO once_forwarders (owner, lease_until, destination) VALUES
			('a', ` + b.in(time.Hour) + `, 'amqp://one'), ('gone', ` + b.in(-time.Hour) + `, 'amqp://one')`)
		b.exec(`UPDATE once_slots SET owner = 'a', lease_until = ` + b.in(time.Hour) + ` WHERE slot < 3`)
		b.exec(`UPDATE once_slots SET owner = 'gone', lease_until = ` + b.in(-time.Hour) + ` WHERE slot = 3`)
		forwarders, err := b.reader.Forwarders(b.Context())
		require.NoError(b, err)
		require.Len(b, forwarders, 1)
		require.InDelta(b, 3600, time.Until(forwarders[0].LeaseUntil).Seconds(), 60)
		forwarders[0].LeaseUntil = time.Time{}
		require.Equal(b, status.Forwarder{Owner: "a", Destination: "amqp://one", Slots: 3}, forwarders[0])

		slots, err := b.reader.Slots(b.Context())
		require.NoError(b, err)
		require.Len(b, slots, 64)
		require.Equal(b, "a", slots[2].Owner)
		require.False(b, slots[2].LeaseUntil.IsZero())
		require.Equal(b, status.Slot{Slot: 3}, slots[3])

		s, err := b.reader.Read(b.Context())
		require.NoError(b, err)
		require.Equal(b, 61, s.FreeSlots)
		require.Len(b, s.Forwarders, 1)
	})
}

// With many rows a count stops at its bound, and the planner estimates the rest.
func TestManyRowsAreNotCounted(t *testing.T) {
	b := newBench(t, testkit.Postgres(t))
	const all = 60_000
	b.exec(fmt.Sprintf(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, due_at)
		SELECT n, 't', 0, 'payload', '{}', now() + interval '1 hour' FROM generate_series(1, %d) AS n`, all))
	b.exec(fmt.Sprintf(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		SELECT 'c', 't', n, '', '', CASE WHEN n %% 2 = 0 THEN 'quarantined' ELSE 'waiting' END, now()
		FROM generate_series(1, %d) AS n`, all))
	b.exec(`ANALYZE once_outbox`)
	b.exec(`ANALYZE once_parked`)
	s, err := b.reader.Read(b.Context())
	require.NoError(b, err)
	for _, c := range []struct {
		count status.Count
		about float64
	}{{s.Outbox.Pending, all}, {s.Outbox.Deferred, all}, {s.Waiting, all / 2}, {s.Quarantine, all / 2}} {
		require.Equal(b, 10_000, c.count.N)
		require.True(b, c.count.More)
		require.InEpsilon(b, c.about, float64(c.count.About), 0.2)
	}
	require.Zero(b, s.Outbox.Oldest)
	require.Equal(b, 1000, s.Failures[0].Count)
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	_, err := status.New(nil, status.Config{})
	require.ErrorContains(t, err, "db is nil")
}

func TestFlowCountsWhatMoves(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		before, err := b.reader.Flow(b.Context())
		require.NoError(b, err)
		require.Empty(b, before.Handled)
		for range 5 {
			b.message(b.in(0), "NULL", "NULL")
		}
		b.exec(`DELETE FROM once_outbox WHERE position <= 2`)
		for n, consumer := range []string{"mail", "payments", "payments"} {
			b.exec(fmt.Sprintf(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m%d', '%s', '')`, n, consumer))
		}
		b.exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('old', 'old', '', ` + b.in(-time.Minute) + `)`)
		testkit.Eventually(b, time.Minute, "the database has counted", func() bool {
			after, err := b.reader.Flow(b.Context())
			require.NoError(b, err)
			require.Len(b, after.Handled, 2)
			require.Equal(b, "mail", after.Handled[0].Consumer)
			require.InDelta(b, 2.0/30, after.Handled[1].PerSecond, 0.001)
			return after.Written-before.Written == 5 && after.Removed-before.Removed == 2
		})
	})
}

// The rate of many messages is that of the time that they took.
func TestFlowOfManyMessages(t *testing.T) {
	b := newBench(t, testkit.Postgres(t))
	b.exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT n, 'payments', '', now() - n * interval '5 milliseconds' FROM generate_series(1, 5000) AS n`)
	flow, err := b.reader.Flow(b.Context())
	require.NoError(b, err)
	// 200 a second, if the database answers in no time.
	require.Greater(b, flow.Handled[0].PerSecond, 2000.0/30)
	require.LessOrEqual(b, flow.Handled[0].PerSecond, 201.0)
}

func TestDaysCountWhatTheTablesKnow(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		day := func(n int) string { return b.in(-time.Duration(n) * 24 * time.Hour) }
		// The oldest first: ids ascend with the times. Some ids are missing.
		for _, n := range []int{5, 5, 3, 3, 3, 1, 0} {
			b.exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
				VALUES (1, 'm', 't', '', '{}', ` + day(n) + `, ` + day(n) + `)`)
		}
		b.exec(`DELETE FROM once_outbox_sent WHERE id IN (1, 4)`)
		b.exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason,
			unknown, died_at) VALUES (1, 'm', 't', '', '{}', ` + day(4) + `, 1, '', 'exhausted', 1 = 0, ` + day(4) + `)`)
		for n, at := range []int{9, 3, 3, 1} {
			b.exec(fmt.Sprintf(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('m%d', 'c', '', %s)`, n, day(at)))
		}
		b.park("quarantined", "1")
		b.park("quarantined", "2")
		b.park("waiting", "3")
		since := time.Now().UTC().AddDate(0, 0, -6).Truncate(24 * time.Hour)
		days, err := b.reader.Days(b.Context(), since.Add(time.Hour))
		require.NoError(b, err)
		require.Len(b, days, 7)
		for i, want := range []status.Day{{}, {Sent: 1}, {Dead: 1}, {Sent: 2, Handled: 2}, {}, {Sent: 1, Handled: 1}, {Sent: 1, Quarantined: 2}} {
			want.Start = since.AddDate(0, 0, i)
			require.Equal(b, want, days[i])
		}
		_, err = b.reader.Days(b.Context(), time.Now().AddDate(-2, 0, 0))
		require.ErrorContains(b, err, "more than 400 days ago")
		_, err = b.reader.Days(b.Context(), time.Now().AddDate(0, 0, 2))
		require.ErrorContains(b, err, "in the future")
	})
}
