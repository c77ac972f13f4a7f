package forwarder

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	require.NoError(t, err)
	s := newStore(db.DB, d)
	session := func() (pid int) {
		require.NoError(t, db.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid))
		return pid
	}
	first := session()
	require.Equal(t, first, session(), "the pool keeps it")
	fails := func(err error) error {
		return s.read(t.Context(), func(*sql.Tx) error { return err })
	}
	other := errors.New("other")
	require.Equal(t, other, fails(other))
	require.Equal(t, first, session())
	readOnly := fmt.Errorf("begin: %w", stateError("25006"))
	require.Equal(t, readOnly, fails(readOnly))
	require.NotEqual(t, first, session())
}

func TestCleanedErrors(t *testing.T) {
	require.Equal(t, "a\uFFFDb\uFFFDc", clean(errors.New("a\x00b\xffc")))
	long := clean(errors.New(strings.Repeat("日", 10_000)))
	require.LessOrEqual(t, len(long), 2000)
	require.NotContains(t, long, "\uFFFD")
}

func TestTrap68_AConfirmedMessageTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, config))
		d, err := dialect.New(config)
		require.NoError(t, err)
		s := newStore(db.DB, d)
		_, err = db.Exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
			VALUES ('a', 't', 1, '', '{}'), ('b', 't', 1, '', '{}')`)
		require.NoError(t, err)
		left := func() (n int) {
			require.NoError(t, db.QueryRow(`SELECT COUNT(*) FROM once_outbox`).Scan(&n))
			return n
		}
		removed := func(rows ...*dispatch.Message) int64 {
			n, err := s.remove(t.Context(), rows)
			require.NoError(t, err)
			return n
		}
		require.Zero(t, removed(&dispatch.Message{Position: 1, ID: "b"}, &dispatch.Message{Position: 2, ID: "a"}), "ids of another history")
		require.Equal(t, 2, left())
		require.EqualValues(t, 2, removed(&dispatch.Message{Position: 1, ID: "a"}, &dispatch.Message{Position: 2, ID: "b"}))
		require.Zero(t, left())
		require.Zero(t, removed(&dispatch.Message{Position: 1, ID: "a"}), "again does no harm")
	})
}

// Trap 18. An instance that has lost its slots must not record attempts or dead letters
// of their messages.
func TestTrap18_OnlyTheOwnerChargesAndBuries(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, config))
		d, err := dialect.New(config)
		require.NoError(t, err)
		owner, other := newStore(db.DB, d), newStore(db.DB, d)
		all := leaseRequest{take: true, length: time.Minute}
		got, err := owner.lease(t.Context(), all)
		require.NoError(t, err)
		require.Len(t, got.slots, 64)
		got, err = other.lease(t.Context(), all)
		require.NoError(t, err)
		require.Empty(t, got.slots)

		_, err = db.Exec(`INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata) VALUES ('a', 't', 'k', 1, '', '{}')`)
		require.NoError(t, err)
		count := func(query string) (n int) {
			require.NoError(t, db.QueryRow(query).Scan(&n))
			return n
		}
		m := &dispatch.Message{Position: 1, ID: "a", Key: "k"}
		charges := []dispatch.Charge{{Message: m, Attempts: 1, Err: errRefused, Cause: dispatch.Refused}}

		found, err := other.charge(t.Context(), charges)
		require.NoError(t, err)
		require.Zero(t, found)
		require.Zero(t, count(`SELECT attempts FROM once_outbox`))
		require.Zero(t, count(`SELECT COUNT(*) FROM once_blocked_keys`))
		death := dispatch.Death{Message: m, Err: errRefused}
		moved, err := other.moveDead(t.Context(), death, SendSuccessors)
		require.NoError(t, err)
		require.False(t, moved)
		require.Zero(t, count(`SELECT COUNT(*) FROM once_outbox_dead`))

		found, err = owner.charge(t.Context(), charges)
		require.NoError(t, err)
		require.EqualValues(t, 1, found)
		require.Equal(t, 1, count(`SELECT attempts FROM once_outbox`))
		require.Equal(t, 1, count(`SELECT COUNT(*) FROM once_blocked_keys`))
		moved, err = owner.moveDead(t.Context(), death, SendSuccessors)
		require.NoError(t, err)
		require.True(t, moved)
		require.Zero(t, count(`SELECT COUNT(*) FROM once_blocked_keys`))
	})
}

// After a failover to a replica that lagged behind, positions are used again. A message
// must become a dead letter although a dead letter from before the failover has the
// same position.
func TestADeadLetterOfAPositionThatIsUsedAgain(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, config))
		d, err := dialect.New(config)
		require.NoError(t, err)
		s := newStore(db.DB, d)
		_, err = s.lease(t.Context(), leaseRequest{take: true, length: time.Minute})
		require.NoError(t, err)
		for _, id := range []string{"old", "new"} {
			_, err = db.Exec(`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata)
				VALUES (7, '` + id + `', 't', 1, '', '{}')`)
			require.NoError(t, err)
			moved, err := s.moveDead(t.Context(), dispatch.Death{
				Message: &dispatch.Message{Position: 7, ID: id}, Err: errRefused, Exhausted: true,
			}, SendSuccessors)
			require.NoError(t, err)
			require.True(t, moved)
		}
		var n int
		require.NoError(t, db.QueryRow(`SELECT COUNT(*) FROM once_outbox_dead WHERE position = 7`).Scan(&n))
		require.Equal(t, 2, n)
	})
}

func TestTrap68_ARepeatedRemovalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, config))
		d, err := dialect.New(config)
		require.NoError(t, err)
		s := newStore(db.DB, d)
		s.keepSent = true
		_, err = db.Exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
			VALUES ('a', 't', 1, '', '{}'), ('b', 't', 1, '', '{}'), ('c', 't', 1, '', '{}')`)
		require.NoError(t, err)
		count := func(query string) (n int) {
			require.NoError(t, db.QueryRow(query).Scan(&n))
			return n
		}
		for _, rows := range [][]*dispatch.Message{
			{{Position: 1, ID: "a"}, {Position: 2, ID: "a"}},
			{{Position: 1, ID: "a"}, {Position: 3, ID: "c"}},
		} {
			removed, err := s.remove(t.Context(), rows)
			require.NoError(t, err)
			require.EqualValues(t, 1, removed)
		}
		require.Equal(t, 1, count(`SELECT COUNT(*) FROM once_outbox`))
		require.Equal(t, 2, count(`SELECT COUNT(*) FROM once_outbox_sent`))
		require.Equal(t, 2, count(`SELECT COUNT(DISTINCT message_id) FROM once_outbox_sent WHERE message_id IN ('a', 'c')`))
	})
}

func TestTheSentLogIsForgottenInBatches(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, config))
		d, err := dialect.New(config)
		require.NoError(t, err)
		s := newStore(db.DB, d)
		sent := func(id string, minutes int) {
			_, err := db.Exec(d.SQL(`INSERT INTO {outbox_sent} (position, message_id, topic, payload, metadata, created_at, sent_at)
				VALUES (1, $1, 't', '', '{}', {now}, {after $2})`), id, -minutes*60_000)
			require.NoError(t, err)
		}
		for _, minutes := range []int{9, 8, 7, 1, 0, 6} {
			sent(fmt.Sprint(minutes), minutes)
		}
		for _, want := range []int64{2, 1, 0} { // the last row waits until the rows before it are old enough
			n, err := s.forgetSent(t.Context(), 5*time.Minute, 2)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
	})
}
