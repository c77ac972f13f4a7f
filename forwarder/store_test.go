package forwarder

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

type stateError string

func (s stateError) Error() string    { return "SQLSTATE " + string(s) }
func (s stateError) SQLState() string { return string(s) }

func TestTrap27_AConnectionToAReplicaIsThrownAway(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	d, err := dialect.New(schema.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(db.DB, d)
	session := func() (pid int) {
		if err := db.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		d, err := dialect.New(config)
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(db.DB, d)
		_, err = db.Exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
			VALUES ('a', 't', 1, '', '{}'), ('b', 't', 1, '', '{}')`)
		if err != nil {
			t.Fatal(err)
		}
		left := func() (n int) {
			if err := db.QueryRow(`SELECT COUNT(*) FROM once_outbox`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		removed := func(rows ...*dispatch.Message) int64 {
			n, err := s.remove(t.Context(), rows)
			if err != nil {
				t.Fatal(err)
			}
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		d, err := dialect.New(config)
		if err != nil {
			t.Fatal(err)
		}
		owner, other := newStore(db.DB, d), newStore(db.DB, d)
		all := leaseRequest{take: true, length: time.Minute}
		got, err := owner.lease(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.slots) != 64 {
			t.Fatalf("%d slots, want 64: %v", len(got.slots), got.slots)
		}
		got, err = other.lease(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.slots) != 0 {
			t.Fatalf("got.slots are %v, want none", got.slots)
		}

		_, err = db.Exec(`INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata) VALUES ('a', 't', 'k', 1, '', '{}')`)
		if err != nil {
			t.Fatal(err)
		}
		count := func(query string) (n int) {
			if err := db.QueryRow(query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		m := &dispatch.Message{Position: 1, ID: "a", Key: "k"}
		charges := []dispatch.Charge{{Message: m, Attempts: 1, Err: errRefused, Cause: dispatch.Refused}}

		found, err := other.charge(t.Context(), charges)
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		if moved {
			t.Fatal("moved is true")
		}
		if got := count(`SELECT COUNT(*) FROM once_outbox_dead`); got != 0 {
			t.Fatalf("count is %d, want 0", got)
		}

		found, err = owner.charge(t.Context(), charges)
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		d, err := dialect.New(config)
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(db.DB, d)
		if _, err := s.lease(t.Context(), leaseRequest{take: true, length: time.Minute}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"old", "new"} {
			_, err = db.Exec(`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata)
				VALUES (7, '` + id + `', 't', 1, '', '{}')`)
			if err != nil {
				t.Fatal(err)
			}
			moved, err := s.moveDead(t.Context(), dispatch.Death{
				Message: &dispatch.Message{Position: 7, ID: id}, Err: errRefused, Exhausted: true,
			}, SendSuccessors)
			if err != nil {
				t.Fatal(err)
			}
			if !moved {
				t.Fatal("moved is false")
			}
		}
		var n int
		if err := db.QueryRow(`SELECT COUNT(*) FROM once_outbox_dead WHERE position = 7`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n != 2 {
			t.Fatalf("n is %d, want 2", n)
		}
	})
}

func TestTrap68_ARepeatedRemovalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		d, err := dialect.New(config)
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(db.DB, d)
		s.keepSent = true
		_, err = db.Exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
			VALUES ('a', 't', 1, '', '{}'), ('b', 't', 1, '', '{}'), ('c', 't', 1, '', '{}')`)
		if err != nil {
			t.Fatal(err)
		}
		count := func(query string) (n int) {
			if err := db.QueryRow(query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for _, rows := range [][]*dispatch.Message{
			{{Position: 1, ID: "a"}, {Position: 2, ID: "a"}},
			{{Position: 1, ID: "a"}, {Position: 3, ID: "c"}},
		} {
			removed, err := s.remove(t.Context(), rows)
			if err != nil {
				t.Fatal(err)
			}
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		d, err := dialect.New(config)
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(db.DB, d)
		sent := func(id string, minutes int) {
			_, err := db.Exec(d.SQL(`INSERT INTO {outbox_sent} (position, message_id, topic, payload, metadata, created_at, sent_at)
				VALUES (1, $1, 't', '', '{}', {now}, {after $2})`), id, -minutes*60_000)
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, minutes := range []int{9, 8, 7, 1, 0, 6} {
			sent(fmt.Sprint(minutes), minutes)
		}
		for _, want := range []int64{2, 1, 0} { // the last row waits until the rows before it are old enough
			n, err := s.forgetSent(t.Context(), 5*time.Minute, 2)
			if err != nil {
				t.Fatal(err)
			}
			if n != want {
				t.Fatalf("n is %d, want %d", n, want)
			}
		}
	})
}
