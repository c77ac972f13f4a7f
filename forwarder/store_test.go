package forwarder

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

type stateError string

func (s stateError) Error() string    { return "SQLSTATE " + string(s) }
func (s stateError) SQLState() string { return string(s) }

func TestTrap27_AConnectionToAReplicaIsThrownAway(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	d, err := dialect.New(schema.Config{})
	kit.OK(t, err)
	s := newStore(db.DB, d)
	session := func() (pid int) {
		kit.OK(t, db.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid))
		return pid
	}
	first := session()
	if got := session(); got != first {
		t.Fatalf("session is %d, want %d: the pool keeps it", got, first)
	}
	fails := func(err error) error {
		return s.read(t.Context(), func(*sql.Tx) error { return err })
	}
	other := errors.New("other")
	if got := fails(other); !reflect.DeepEqual(got, other) {
		t.Fatalf("fails(other) is %v, want %v", got, other)
	}
	if got := session(); got != first {
		t.Fatalf("session is %d, want %d", got, first)
	}
	readOnly := fmt.Errorf("begin: %w", stateError("25006"))
	if got := fails(readOnly); !reflect.DeepEqual(got, readOnly) {
		t.Fatalf("fails(readOnly) is %v, want %v", got, readOnly)
	}
	if got := session(); got == first {
		t.Fatalf("session is %d, want another", got)
	}
}

// storeIn returns a store, and the dialect of its database. It creates the tables.
func storeIn(t *testing.T, db kit.Database) (*store, dialect.Dialect) {
	t.Helper()
	d := kit.Dialect(t, kit.Tables(t, db))
	return newStore(db.DB, d), d
}

func TestCleanedErrors(t *testing.T) {
	if got := clean(errors.New("a\x00b\xffc")); got != "a\uFFFDb\uFFFDc" {
		t.Fatalf(`clean is %q, want "a�b�c"`, got)
	}
	long := clean(errors.New(strings.Repeat("日", 10_000)))
	if len(long) > 2000 {
		t.Fatalf("len(long) is %d, want at most 2000", len(long))
	}
	if strings.Contains(long, "\uFFFD") {
		t.Fatalf(`%q contains "�"`, long)
	}
}

func TestTrap68_AConfirmedMessageTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, _ := storeIn(t, db)
		kit.Exec(t, db, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
			VALUES ('a', 't', 1, '', '{}'), ('b', 't', 1, '', '{}')`)
		left := func() (n int) {
			kit.OK(t, db.QueryRow(`SELECT COUNT(*) FROM once_outbox`).Scan(&n))
			return n
		}
		removed := func(rows ...*dispatch.Message) int64 {
			n, _, err := s.remove(t.Context(), rows)
			kit.OK(t, err)
			return n
		}
		if got := removed(&dispatch.Message{Position: 1, ID: "b"}, &dispatch.Message{Position: 2, ID: "a"}); got != 0 {
			t.Fatalf("removed is %d, want 0: ids of another history", got)
		}
		if got := left(); got != 2 {
			t.Fatalf("left is %d, want 2", got)
		}
		if got := removed(&dispatch.Message{Position: 1, ID: "a"}, &dispatch.Message{Position: 2, ID: "b"}); got != 2 {
			t.Fatalf("removed is %d, want 2", got)
		}
		if got := left(); got != 0 {
			t.Fatalf("left is %d, want 0", got)
		}
		if got := removed(&dispatch.Message{Position: 1, ID: "a"}); got != 0 {
			t.Fatalf("removed is %d, want 0: again does no harm", got)
		}
	})
}

// Trap 18. An instance that has lost its slots must not record attempts or dead letters
// of their messages.
func TestTrap18_OnlyTheOwnerChargesAndBuries(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		d := kit.Dialect(t, config)
		owner, other := newStore(db.DB, d), newStore(db.DB, d)
		all := leaseRequest{take: true, length: time.Minute}
		got, err := owner.lease(t.Context(), all)
		kit.OK(t, err)
		if len(got.slots) != 64 {
			t.Fatalf("%d slots, want 64: %v", len(got.slots), got.slots)
		}
		got, err = other.lease(t.Context(), all)
		kit.OK(t, err)
		if len(got.slots) != 0 {
			t.Fatalf("got.slots are %v, want none", got.slots)
		}

		kit.Exec(t, db, `INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata) VALUES ('a', 't', 'k', 1, '', '{}')`)
		count := func(query string) (n int) {
			kit.OK(t, db.QueryRow(query).Scan(&n))
			return n
		}
		m := &dispatch.Message{Position: 1, ID: "a", Key: "k"}
		charges := []dispatch.Charge{{Message: m, Attempts: 1, Err: errRefused, Cause: dispatch.Refused}}

		found, err := other.charge(t.Context(), charges)
		kit.OK(t, err)
		if found != 0 {
			t.Fatalf("found is %d, want 0", found)
		}
		if got := count(`SELECT attempts FROM once_outbox`); got != 0 {
			t.Fatalf("count is %d, want 0", got)
		}
		if got := count(`SELECT COUNT(*) FROM once_blocked_keys`); got != 0 {
			t.Fatalf("count is %d, want 0", got)
		}
		death := dispatch.Death{Message: m, Err: errRefused}
		moved, err := other.moveDead(t.Context(), death, SendSuccessors)
		kit.OK(t, err)
		if moved {
			t.Fatal("moved is true")
		}
		if got := count(`SELECT COUNT(*) FROM once_outbox_dead`); got != 0 {
			t.Fatalf("count is %d, want 0", got)
		}

		found, err = owner.charge(t.Context(), charges)
		kit.OK(t, err)
		if found != 1 {
			t.Fatalf("found is %d, want 1", found)
		}
		if got := count(`SELECT attempts FROM once_outbox`); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}
		if got := count(`SELECT COUNT(*) FROM once_blocked_keys`); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}
		moved, err = owner.moveDead(t.Context(), death, SendSuccessors)
		kit.OK(t, err)
		if !moved {
			t.Fatal("moved is false")
		}
		if got := count(`SELECT COUNT(*) FROM once_blocked_keys`); got != 0 {
			t.Fatalf("count is %d, want 0", got)
		}
	})
}

// After a failover to a replica that lagged behind, positions are used again. A message
// must become a dead letter although a dead letter from before the failover has the
// same position.
func TestADeadLetterOfAPositionThatIsUsedAgain(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, _ := storeIn(t, db)
		kit.OK(t, kit.Err(s.lease(t.Context(), leaseRequest{take: true, length: time.Minute})))
		for _, id := range []string{"old", "new"} {
			kit.Exec(t, db, `INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata)
				VALUES (7, '`+id+`', 't', 1, '', '{}')`)
			moved, err := s.moveDead(t.Context(), dispatch.Death{
				Message: &dispatch.Message{Position: 7, ID: id}, Err: errRefused, Exhausted: true,
			}, SendSuccessors)
			kit.OK(t, err)
			if !moved {
				t.Fatal("moved is false")
			}
		}
		kit.WantNumber(t, db, 2, `SELECT COUNT(*) FROM once_outbox_dead WHERE position = 7`)
	})
}

func TestTrap68_ARepeatedRemovalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, _ := storeIn(t, db)
		s.keepSent = true
		kit.Exec(t, db, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
			VALUES ('a', 't', 1, '', '{}'), ('b', 't', 1, '', '{}'), ('c', 't', 1, '', '{}')`)
		count := func(query string) (n int) {
			kit.OK(t, db.QueryRow(query).Scan(&n))
			return n
		}
		for _, rows := range [][]*dispatch.Message{
			{{Position: 1, ID: "a"}, {Position: 2, ID: "a"}},
			{{Position: 1, ID: "a"}, {Position: 3, ID: "c"}},
		} {
			removed, _, err := s.remove(t.Context(), rows)
			kit.OK(t, err)
			if removed != 1 {
				t.Fatalf("removed is %d, want 1", removed)
			}
		}
		if got := count(`SELECT COUNT(*) FROM once_outbox`); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}
		if got := count(`SELECT COUNT(*) FROM once_outbox_sent`); got != 2 {
			t.Fatalf("count is %d, want 2", got)
		}
		if got := count(`SELECT COUNT(DISTINCT message_id) FROM once_outbox_sent WHERE message_id IN ('a', 'c')`); got != 2 {
			t.Fatalf("count is %d, want 2", got)
		}
	})
}

func TestTheSentLogIsForgottenInBatches(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, d := storeIn(t, db)
		sent := func(id string, minutes int) {
			kit.Exec(t, db, d.SQL(`INSERT INTO {outbox_sent} (position, message_id, topic, payload, metadata, created_at, sent_at)
				VALUES (1, $1, 't', '', '{}', {now}, {after $2})`), id, -minutes*60_000)
		}
		for _, minutes := range []int{9, 8, 7, 1, 0, 6} {
			sent(fmt.Sprint(minutes), minutes)
		}
		for _, want := range []int64{2, 1, 0} { // the last row waits until the rows before it are old enough
			n, err := s.forgetSent(t.Context(), 5*time.Minute, 2)
			kit.OK(t, err)
			if n != want {
				t.Fatalf("n is %d, want %d", n, want)
			}
		}
	})
}

// newIdle returns a forwarder that does not run. It creates the tables.
func newIdle(t *testing.T, db kit.Database) *Forwarder {
	t.Helper()
	config := Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}}
	kit.OK(t, schema.Up(t.Context(), db.DB, config.Schema))
	f, err := New(db.DB, new(counter), config)
	kit.OK(t, err)
	return f
}

// The lag of a message is counted from when it was written or, if it has a due time,
// from when it is due. If it was refused, the lag is counted from the first refusal,
// although it is due later. The lag of the outbox is the largest lag of a message.
func TestAGlanceSeesHowLateTheOutboxIs(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := newIdle(t, db)
		look := func() boundedStats {
			t.Helper()
			seen, err := f.store.boundedStats(t.Context())
			kit.OK(t, err)
			return seen
		}
		if got := look(); got != (boundedStats{}) {
			t.Fatalf("look is %+v, want none", got)
		}

		now, hourAgo, due := "now()", "now() - interval '1 hour'", "now() - interval '2 hours'"
		if db.Dialect == "sqlite" {
			now, hourAgo, due = "unixepoch() * 1000", "(unixepoch() - 3600) * 1000", "(unixepoch() - 7200) * 1000"
		}
		const columns = `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at) VALUES `
		for _, row := range []string{`('1', 't', 0, '', '{}', ` + hourAgo + `, NULL)`, `('new', 't', 0, '', '{}', ` + now + `, NULL)`} {
			kit.Exec(t, db, columns+row)
		}
		seen := look()
		if seen.pending != 2 {
			t.Fatalf("seen.pending is %d, want 2", seen.pending)
		}
		if got := seen.lag.Seconds(); math.Abs(got-3600) > 60 {
			t.Fatalf("seen.lag.Seconds is %v, want 3600, give or take 60", got)
		}

		kit.Exec(t, db, columns+`('2', 't', 0, '', '{}', `+hourAgo+`, `+due+`)`)
		if got := look().lag.Seconds(); math.Abs(got-7200) > 60 {
			t.Fatalf("look().lag.Seconds is %v, want 7200, give or take 60: what should have been sent when it was due", got)
		}

		later, failing := "now() + interval '5 minutes'", "now() - interval '3 hours'"
		if db.Dialect == "sqlite" {
			later, failing = "(unixepoch() + 300) * 1000", "(unixepoch() - 10800) * 1000"
		}
		kit.Exec(t, db, columns+`('3', 't', 0, '', '{}', `+hourAgo+`, `+later+`)`)
		if got := look().lag.Seconds(); math.Abs(got-7200) > 60 {
			t.Fatalf("look().lag.Seconds is %v, want 7200, give or take 60: what its producer has delayed", got)
		}
		kit.Exec(t, db, `UPDATE once_outbox SET failing_since = `+failing+` WHERE message_id = '3'`)
		if got := look().lag.Seconds(); math.Abs(got-10800) > 60 {
			t.Fatalf("look().lag.Seconds is %v, want 10800, give or take 60: what backs off, since it failed first", got)
		}
		kit.Exec(t, db, `UPDATE once_outbox SET failing_since = `+hourAgo+` WHERE message_id = '2'`)
		if got := look().lag.Seconds(); math.Abs(got-10800) > 60 {
			t.Fatalf("look().lag.Seconds is %v, want 10800, give or take 60: the earliest of two failures", got)
		}
	})
}

// Each number counts the rows of one table.
func TestStatsCountTheRowsOfEachTable(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := newIdle(t, db)
		for _, query := range []string{
			`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('1', 't', 0, '', '{}')`,
			`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('a', 7, 7, 'dead'), ('b', 8, 8, 'dead')`,
			`INSERT INTO once_outbox_dead
				(position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown, died_at)
				SELECT n, 'dead', 't', payload, metadata, created_at, 1, '', '', false, created_at
				FROM once_outbox CROSS JOIN (SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3) AS three`,
			`INSERT INTO once_pauses (kind, name, actor, why) VALUES
				('topic', 'a', 'ann', 'w'), ('topic', 'b', 'ann', 'w'), ('topic', 'c', 'ann', 'w'), ('tenant', 'd', 'ann', 'w')`,
		} {
			kit.Exec(t, db, query)
		}
		seen, err := f.store.boundedStats(t.Context())
		if err != nil || seen.pending != 1 || seen.blockedKeys != 2 || seen.dead != 3 || seen.pauses != 4 {
			t.Errorf("boundedStats: got %+v, %v; want 1 pending, 2 blocked keys, 3 dead, 4 pauses", seen, err)
		}
	})
}
