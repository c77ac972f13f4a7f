package status_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/status"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

type bench struct {
	*kit.Bench

	reader *status.Reader
}

func eachDatabase(t *testing.T, test func(b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(newBench(t, db)) })
}

func newBench(t *testing.T, db kit.Database) *bench {
	t.Helper()
	b := kit.NewBench(t, db, schema.Config{})
	reader, err := status.New(b.DB, b.Config)
	kit.OK(t, err)
	return &bench{b, reader}
}

// message inserts a message into the outbox.
func (b *bench) message(created, due, failing string) {
	b.Helper()
	b.Exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at, failing_since)
		VALUES ('m', 't', 0, '', '{}', ` + created + `, ` + due + `, ` + failing + `)`)
}

func (b *bench) park(state, fingerprint string) {
	b.Helper()
	b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, ordering_key, digest, envelope, state, due_at, fingerprint, reason,
		last_failed_at) VALUES ('payments', 't', '', 'k` + fingerprint + `', '', '', '` + state + `', ` + b.FromNow(0) + `, '` + fingerprint +
		`', 'failed', ` + b.FromNow(0) + `)`)
}

func TestReadOfEmptyTables(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		s, err := b.reader.Read(b.Context())
		kit.OK(b, err)
		if got := s.At.Unix(); math.Abs(float64(got)-float64(time.Now().Unix())) > 60 {
			b.Fatalf("s.At.Unix is %v, want %v, give or take 60", got, time.Now().Unix())
		}
		s.At = time.Time{}
		if want := (status.Status{FreeSlots: 64}); !reflect.DeepEqual(s, want) {
			b.Fatalf("s is %+v, want %+v", s, want)
		}
	})
}

// If several messages are due or fail, Oldest and FailingFor come from the earliest due
// time and the earliest failure.
func TestReadFindsTheEarliestTimes(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.message(b.FromNow(-9*time.Hour), b.FromNow(-time.Hour), "NULL")
		b.message(b.FromNow(-9*time.Hour), b.FromNow(-2*time.Hour), "NULL")
		b.message(b.FromNow(-9*time.Hour), b.FromNow(time.Hour), b.FromNow(-3*time.Hour))
		b.message(b.FromNow(-9*time.Hour), b.FromNow(time.Hour), b.FromNow(-4*time.Hour))
		b.message(b.FromNow(-9*time.Hour), b.FromNow(time.Hour), b.FromNow(-time.Hour))
		s, err := b.reader.Read(b.Context())
		kit.OK(b, err)
		if got := s.Outbox.Oldest.Seconds(); math.Abs(got-7200) > 30 {
			b.Errorf("s.Outbox.Oldest.Seconds is %v, want 7200, give or take 30", got)
		}
		if got := s.Outbox.FailingFor.Seconds(); math.Abs(got-14400) > 30 {
			b.Errorf("s.Outbox.FailingFor.Seconds is %v, want 14400, give or take 30", got)
		}
	})
}

func TestReadCountsEachState(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.message(b.FromNow(-time.Minute), "NULL", "NULL")
		b.message(b.FromNow(-9*time.Hour), b.FromNow(time.Hour), "NULL")
		b.message(b.FromNow(-9*time.Hour), b.FromNow(time.Hour), b.FromNow(-2*time.Hour))
		b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 3, 3, 'refused')`)
		b.Exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
			VALUES (9, 'd', 't', '', '{}', ` + b.FromNow(0) + `, 1, 'e', 'exhausted', CAST(0 AS ` +
			map[bool]string{true: "integer", false: "boolean"}[b.SQLite()] + `))`)
		b.park("waiting", "")
		b.park("held", "")
		for _, fingerprint := range []string{"a", "b1", "b2", "c"} {
			b.park("quarantined", fingerprint)
		}
		b.Exec(`UPDATE once_parked SET fingerprint = 'b' WHERE fingerprint IN ('b1', 'b2')`)
		b.Exec(`INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id, lease_until)
			VALUES ('', '{}', '{}', 'ann', '', 'running', 1, 1, ` + b.FromNow(time.Hour) + `), ('', '{}', '{}', 'ann', '', 'running', 1, 1, ` +
			b.FromNow(-time.Hour) + `), ('', '{}', '{}', 'ann', '', 'paused', 1, 1, NULL)`)

		s, err := b.reader.Read(b.Context())
		kit.OK(b, err)
		if want := (status.Count{N: 3}); s.Outbox.Pending != want {
			b.Fatalf("s.Outbox.Pending is %+v, want %+v", s.Outbox.Pending, want)
		}
		if want := (status.Count{N: 2}); s.Outbox.Deferred != want {
			b.Fatalf("s.Outbox.Deferred is %+v, want %+v", s.Outbox.Deferred, want)
		}
		if want := (status.Count{N: 1}); s.Outbox.Failing != want {
			b.Fatalf("s.Outbox.Failing is %+v, want %+v", s.Outbox.Failing, want)
		}
		if want := (status.Count{N: 1}); s.Outbox.BlockedKeys != want {
			b.Fatalf("s.Outbox.BlockedKeys is %+v, want %+v", s.Outbox.BlockedKeys, want)
		}
		if got := s.Outbox.Oldest.Seconds(); math.Abs(got-60) > 30 { // delayed messages do not count
			b.Fatalf("s.Outbox.Oldest.Seconds is %v, want 60, give or take 30", got)
		}
		if got := s.Outbox.FailingFor.Seconds(); math.Abs(got-7200) > 30 {
			b.Fatalf("s.Outbox.FailingFor.Seconds is %v, want 7200, give or take 30", got)
		}
		want := []status.Count{{N: 1}, {N: 1}, {N: 1}, {N: 4}}
		if got := []status.Count{s.Dead, s.Waiting, s.Held, s.Quarantine}; !slices.Equal(got, want) {
			b.Fatalf("s.Dead, s.Waiting, s.Held, s.Quarantine are %+v, want %+v", got, want)
		}
		if s.Replays != 1 {
			b.Fatalf("s.Replays is %d, want 1", s.Replays)
		}
		if len(s.Failures) != 3 {
			b.Fatalf("%d failures, want 3: %+v", len(s.Failures), s.Failures)
		}
		if s.Failures[0].Fingerprint != "b" {
			b.Fatalf(`s.Failures[0].Fingerprint is %q, want "b"`, s.Failures[0].Fingerprint)
		}
		if s.Failures[0].Count != 2 {
			b.Fatalf("s.Failures[0].Count is %d, want 2", s.Failures[0].Count)
		}
		if s.Failures[0].Consumer != "payments" {
			b.Fatalf(`s.Failures[0].Consumer is %q, want "payments"`, s.Failures[0].Consumer)
		}
		if got := s.Failures[0].LastFailedAt.Unix(); math.Abs(float64(got)-float64(time.Now().Unix())) > 60 {
			b.Fatalf("s.Failures[0].LastFailedAt.Unix is %v, want %v, give or take 60", got, time.Now().Unix())
		}

		b.Exec(`UPDATE once_outbox SET due_at = ` + b.FromNow(-3*time.Minute) + ` WHERE position = 2`)
		s, err = b.reader.Read(b.Context())
		kit.OK(b, err)
		if got := s.Outbox.Oldest.Seconds(); math.Abs(got-180) > 30 {
			b.Fatalf("s.Outbox.Oldest.Seconds is %v, want 180, give or take 30", got)
		}
	})
}

func TestForwardersAndSlots(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.Exec(`INSERT INTO once_forwarders (owner, lease_until, destination) VALUES
			('a', ` + b.FromNow(time.Hour) + `, 'amqp://one'), ('gone', ` + b.FromNow(-time.Hour) + `, 'amqp://one')`)
		b.Exec(`UPDATE once_slots SET owner = 'a', lease_until = ` + b.FromNow(time.Hour) + ` WHERE slot < 3`)
		b.Exec(`UPDATE once_slots SET owner = 'gone', lease_until = ` + b.FromNow(-time.Hour) + ` WHERE slot = 3`)
		forwarders, err := b.reader.Forwarders(b.Context())
		kit.OK(b, err)
		if len(forwarders) != 1 {
			b.Fatalf("%d forwarders, want 1: %+v", len(forwarders), forwarders)
		}
		if got := time.Until(forwarders[0].LeaseUntil).Seconds(); math.Abs(got-3600) > 60 {
			b.Fatalf("time.Until(forwarders[0].LeaseUntil).Seconds is %v, want 3600, give or take 60", got)
		}
		forwarders[0].LeaseUntil = time.Time{}
		if want := (status.Forwarder{Owner: "a", Destination: "amqp://one", Slots: 3}); !reflect.DeepEqual(forwarders[0], want) {
			b.Fatalf("forwarders[0] is %+v, want %+v", forwarders[0], want)
		}

		slots, err := b.reader.Slots(b.Context())
		kit.OK(b, err)
		if len(slots) != 64 {
			b.Fatalf("%d slots, want 64: %+v", len(slots), slots)
		}
		if slots[2].Owner != "a" {
			b.Fatalf(`slots[2].Owner is %q, want "a"`, slots[2].Owner)
		}
		if slots[2].LeaseUntil.IsZero() {
			b.Fatal("slots[2].LeaseUntil is zero")
		}
		if want := (status.Slot{Slot: 3}); !reflect.DeepEqual(slots[3], want) {
			b.Fatalf("slots[3] is %+v, want %+v", slots[3], want)
		}

		s, err := b.reader.Read(b.Context())
		kit.OK(b, err)
		if s.FreeSlots != 61 {
			b.Fatalf("s.FreeSlots is %d, want 61", s.FreeSlots)
		}
		if len(s.Forwarders) != 1 {
			b.Fatalf("%d forwarders, want 1: %+v", len(s.Forwarders), s.Forwarders)
		}
	})
}

// With many rows, a count stops at its bound, and the planner estimates the total.
func TestManyRowsAreNotCounted(t *testing.T) {
	b := newBench(t, kit.Postgres(t))
	all := kit.Sized(24_000, 60_000)
	b.Exec(fmt.Sprintf(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, due_at)
		SELECT n, 't', 0, 'payload', '{}', now() + interval '1 hour' FROM generate_series(1, %d) AS n`, all))
	b.Exec(fmt.Sprintf(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		SELECT 'c', 't', n, '', '', CASE WHEN n %% 2 = 0 THEN 'quarantined' ELSE 'waiting' END, now()
		FROM generate_series(1, %d) AS n`, all))
	b.Exec(`ANALYZE once_outbox`)
	b.Exec(`ANALYZE once_parked`)
	s, err := b.reader.Read(b.Context())
	kit.OK(b, err)
	for _, c := range []struct {
		count status.Count
		about float64
	}{{s.Outbox.Pending, float64(all)}, {s.Outbox.Deferred, float64(all)}, {s.Waiting, float64(all) / 2}, {s.Quarantine, float64(all) / 2}} {
		if c.count.N != 10_000 {
			b.Fatalf("c.count.N is %d, want 10_000", c.count.N)
		}
		if !c.count.More {
			b.Fatal("c.count.More is false")
		}
		if about := float64(c.count.About); math.Abs(about-c.about) > 0.2*c.about {
			b.Fatalf("c.count.About is %v, want %v, give or take a fifth", about, c.about)
		}
	}
	if s.Outbox.Oldest != 0 {
		b.Fatalf("s.Outbox.Oldest is %v, want 0", s.Outbox.Oldest)
	}
	if s.Failures[0].Count != 1000 {
		b.Fatalf("s.Failures[0].Count is %d, want 1000", s.Failures[0].Count)
	}
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	if _, err := status.New(nil, schema.Config{}); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Fatalf(`New: got %v, want an error with "db is nil"`, err)
	}
}

func TestDaysCountWhatTheTablesKnow(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		day := func(n int) string { return b.FromNow(-time.Duration(n) * 24 * time.Hour) }
		// The rows are inserted with the oldest first, because ids ascend with the times.
		// Some ids are missing.
		for _, n := range []int{5, 5, 3, 3, 3, 1, 0} {
			b.Exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
				VALUES (1, 'm', 't', '', '{}', ` + day(n) + `, ` + day(n) + `)`)
		}
		b.Exec(`DELETE FROM once_outbox_sent WHERE id IN (1, 4)`)
		b.Exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason,
			unknown, died_at) VALUES (1, 'm', 't', '', '{}', ` + day(4) + `, 1, '', 'exhausted', 1 = 0, ` + day(4) + `)`)
		for n, at := range []int{9, 3, 3, 1} {
			b.Exec(fmt.Sprintf(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('m%d', 'c', '', %s)`, n, day(at)))
		}
		b.park("quarantined", "1")
		b.park("quarantined", "2")
		b.park("waiting", "3")
		since := time.Now().UTC().AddDate(0, 0, -6).Truncate(24 * time.Hour)
		days, err := b.reader.Days(b.Context(), since.Add(time.Hour))
		kit.OK(b, err)
		if len(days) != 7 {
			b.Fatalf("%d days, want 7: %+v", len(days), days)
		}
		for i, want := range []status.Day{{}, {Sent: 1}, {Dead: 1}, {Sent: 2, Handled: 2}, {}, {Sent: 1, Handled: 1}, {Sent: 1, Quarantined: 2}} {
			want.Start = since.AddDate(0, 0, i)
			if !reflect.DeepEqual(days[i], want) {
				b.Fatalf("days[i] is %+v, want %+v", days[i], want)
			}
		}
		_, err = b.reader.Days(b.Context(), time.Now().AddDate(-2, 0, 0))
		if err == nil || !strings.Contains(err.Error(), "more than 400 days ago") {
			b.Fatalf(`got %v, want an error with "more than 400 days ago"`, err)
		}
		if _, err := b.reader.Days(b.Context(), time.Now().AddDate(0, 0, 2)); err == nil || !strings.Contains(err.Error(), "in the future") {
			b.Fatalf(`Days: got %v, want an error with "in the future"`, err)
		}
	})
}

func TestReadListsPauses(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.Exec(`INSERT INTO once_pauses (kind, name, actor, why, paused_at)
			VALUES ('tenant', 'acme', 'ann', 'too loud', ` + b.FromNow(-time.Hour) + `)`)
		b.Exec(`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'mails', 'bob', 'no server')`)
		s, err := b.reader.Read(b.Context())
		kit.OK(b, err)
		if len(s.Outbox.Pauses) != 2 || (s.At.Sub(s.Outbox.Pauses[0].Since)-time.Hour).Abs() > time.Minute {
			b.Fatalf("paused are %+v at %v", s.Outbox.Pauses, s.At)
		}
		s.Outbox.Pauses[0].Since, s.Outbox.Pauses[1].Since = time.Time{}, time.Time{}
		want := []status.Pause{
			{Tenant: "acme", Actor: "ann", Why: "too loud"},
			{Topic: "mails", Actor: "bob", Why: "no server"},
		}
		if !slices.Equal(s.Outbox.Pauses, want) {
			b.Fatalf("got %+v, want %+v", s.Outbox.Pauses, want)
		}
	})
}

func TestFlowCountsWhatMoves(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		before, err := b.reader.Flow(b.Context())
		kit.OK(b, err)
		if len(before.Handled) != 0 {
			b.Fatalf("before.Handled is %+v, want none", before.Handled)
		}
		for range 5 {
			b.message(b.FromNow(0), "NULL", "NULL")
		}
		b.Exec(`DELETE FROM once_outbox WHERE position <= 2`)
		for n, consumer := range []string{"mail", "payments", "payments"} {
			b.Exec(fmt.Sprintf(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m%d', '%s', '')`, n, consumer))
		}
		b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('old', 'old', '', ` + b.FromNow(-time.Minute) + `)`)
		kit.Eventually(b, time.Minute, "the database has counted", func() bool {
			after, err := b.reader.Flow(b.Context())
			kit.OK(b, err)
			if len(after.Handled) != 2 {
				b.Fatalf("len(after.Handled) is %d, want 2: %+v", len(after.Handled), after.Handled)
			}
			if after.Handled[0].Consumer != "mail" {
				b.Fatalf(`after.Handled[0].Consumer is %q, want "mail"`, after.Handled[0].Consumer)
			}
			if math.Abs(after.Handled[1].PerSecond-2.0/30) > 0.001 {
				b.Fatalf("after.Handled[1].PerSecond is %v, want 2.0/30, give or take 0.001", after.Handled[1].PerSecond)
			}
			return after.Written-before.Written == 5 && after.Removed-before.Removed == 2
		})
	})
}

// If more than 2,000 messages were handled in the last 30 seconds, the rate is that of
// the latest 2,000 messages.
func TestFlowOfManyMessages(t *testing.T) {
	b := newBench(t, kit.Postgres(t))
	b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT n, 'payments', '', now() - n * interval '5 milliseconds' FROM generate_series(1, 5000) AS n`)
	flow, err := b.reader.Flow(b.Context())
	kit.OK(b, err)
	// The rate is 200 a second if the database answers immediately.
	if flow.Handled[0].PerSecond <= 2000.0/30 {
		b.Fatalf("flow.Handled[0].PerSecond is %v, want more than %v", flow.Handled[0].PerSecond, 2000.0/30)
	}
	if flow.Handled[0].PerSecond > 201.0 {
		b.Fatalf("flow.Handled[0].PerSecond is %v, want at most 201.0", flow.Handled[0].PerSecond)
	}
}
