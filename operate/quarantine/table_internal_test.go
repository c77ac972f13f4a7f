package quarantine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

var (
	act        = operate.Act{Actor: "ann", Why: "mended"}
	errHandler = errors.New("handler failed")

	selection = parkedrows.Select{Consumer: "c", Topic: "t", Owner: "me", Limit: 100, Lease: time.Minute}
	inOrder   = []parkedrows.Subscription{{Consumer: "c", KeyOrder: true}}
)

func newTestTable(t *testing.T, db kit.Database) *table {
	t.Helper()
	config := kit.Tables(t, db)
	entries, err := New(db.DB, operate.Config{Schema: config, ReplayLease: time.Minute})
	kit.OK(t, err)
	return entries.table
}

func deliver(t *testing.T, s *table, ids ...string) {
	t.Helper()
	for _, id := range ids {
		kit.OK(t, s.parked.Deliver(t.Context(), "t", []string{"c"}, message.NewMessage(id, nil)))
	}
}

func claim(t *testing.T, s *table, sel parkedrows.Select) []parkedrows.Claimed {
	t.Helper()
	claimed, err := s.parked.Claim(t.Context(), sel)
	kit.OK(t, err)
	return claimed
}

// quarantineClaim ends a claim as the middleware does.
func quarantineClaim(ctx context.Context, s *table, c *parkedrows.Claim, f parkedrows.Failure) error {
	_, err := s.parked.Quarantine(ctx, &parkedrows.Delivery{Consumer: "c", Topic: "t", Claim: c}, nil, f, nil)
	return err
}

// keyed returns a message with an ordering key.
func keyed(id, key string) *message.Message {
	msg := message.NewMessage(id, nil)
	msg.Metadata[meta.OrderingKey] = key
	return msg
}

// waitingForLocks returns the number of statements that wait for a lock.
func waitingForLocks(t *testing.T, db kit.Database) (n int) {
	t.Helper()
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
		WHERE NOT granted AND datname = current_database()`).Scan(&n))
	return n
}
