package poison

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

var (
	act        = Act{Actor: "ann", Why: "mended"}
	errHandler = errors.New("handler failed")

	selection = parked.Select{Consumer: "c", Topic: "t", Owner: "me", Limit: 100, Lease: time.Minute}
	inOrder   = []parked.Subscription{{Consumer: "c", KeyOrder: true}}
)

func newTestTable(t *testing.T, db testkit.Database) *table {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	table, err := newTable(db.DB, config)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func deliver(t *testing.T, s *table, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := s.parked.Deliver(t.Context(), "t", []string{"c"}, message.NewMessage(id, nil)); err != nil {
			t.Fatal(err)
		}
	}
}

func claim(t *testing.T, s *table, sel parked.Select) []parked.Claimed {
	t.Helper()
	claimed, err := s.parked.Claim(t.Context(), sel)
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

// quarantineClaim ends a claim as the middleware does.
func quarantineClaim(ctx context.Context, s *table, c *parked.Claim, f parked.Failure) error {
	_, err := s.parked.Quarantine(ctx, &parked.Delivery{Consumer: "c", Topic: "t", Claim: c}, nil, f, nil)
	return err
}

// keyed returns a message with an ordering key.
func keyed(id, key string) *message.Message {
	msg := message.NewMessage(id, nil)
	msg.Metadata[meta.OrderingKey] = key
	return msg
}

// waitingForLocks returns the number of statements that wait for a lock.
func waitingForLocks(t *testing.T, db testkit.Database) (n int) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
		WHERE NOT granted AND datname = current_database()`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
