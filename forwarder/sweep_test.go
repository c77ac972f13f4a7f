package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// inNoSweep counts the rows that no query of the forwarder can find: not now, not when
// they are due, and not after the first message of their blocked key is gone.
func inNoSweep(t *testing.T, db *sql.DB) int {
	t.Helper()
	return count(t, db, `SELECT COUNT(*) FROM once_outbox o
		LEFT JOIN once_blocked_keys h ON h.ordering_key = o.ordering_key
		LEFT JOIN once_outbox head ON head.position = h.position AND head.ordering_key = h.ordering_key
		LEFT JOIN once_outbox_dead dead ON dead.position = h.position AND dead.ordering_key = h.ordering_key
		WHERE NOT EXISTS (SELECT 1 FROM once_slots s WHERE s.slot = o.slot)
		   OR h.position <> o.position AND head.position IS NULL AND (dead.position IS NULL OR h.reason <> 'dead')`)
}

func TestTrap20_EveryRowIsInASweep(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(3, 4))
		healed := false
		b := newBroker().answering(func(delivery) error {
			mu.Lock()
			defer mu.Unlock()
			switch n := random.IntN(10); {
			case healed:
				return nil
			case n < 4:
				return refusal{errors.New("no")}
			case n < 5:
				return hopeless{errors.New("never")}
			case n < 6:
				return errors.New("plain")
			}
			return nil
		})
		cfg := quick(config)
		cfg.MaxAttempts = 3
		cfg.AfterDead = forwarder.BlockKey
		for round := range 5 {
			f := start(t, db, &pipelined{broker: b}, cfg)
			var msgs []*message.Message
			for i := range 40 {
				m := msg(fmt.Sprint(round, "-", i), "")
				switch i % 4 {
				case 0:
					outbox.SetDueAt(m, time.Now().Add(time.Duration(i)*time.Millisecond))
				case 1, 2:
					outbox.SetOrderingKey(m, fmt.Sprint("key", i%16))
				}
				msgs = append(msgs, m)
			}
			put(t, db, config, "t", msgs...)
			eventually(t, "it has begun", func() bool { return b.tries(fmt.Sprint(round, "-3")) > 0 })
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if got := inNoSweep(t, db); got != 0 {
				t.Fatalf("inNoSweep is %d, want 0", got)
			}
		}
		mu.Lock()
		healed = true
		mu.Unlock()
		exec(t, db, `UPDATE once_blocked_keys SET reason = 'refused' WHERE reason = 'dead'`) // so that keys blocked by a dead letter can continue
		start(t, db, &pipelined{broker: b}, cfg)
		drained(t, db)
		if got := len(b.ids(nil)) + dead(t, db); got != 200 {
			t.Fatalf("len(b.ids(nil))+dead(t, db) is %d, want 200: each is sent or dead", got)
		}
	})
}
