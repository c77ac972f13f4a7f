package parkedrows_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
)

// If a step of an operation fails in the database, the operation must return the error
// and change nothing.
func TestOperationWithAFailedStepChangesNothing(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		config := s.Dialect().Config()
		embedded := parkedrows.Consumer{Consumer: "embedded", Topic: "t", Owner: "me", Embedded: true, KeyOrder: true}
		kit.OK(t, kit.Err(s.Register(t.Context(), embedded)))
		ordered := selection
		ordered.Order = parkedrows.BlockWhileRunning
		// heads stores two messages of a key, and claims the first.
		heads := func(key string) *parkedrows.Claim {
			t.Helper()
			kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed(key+"1", key), keyed(key+"2", key)))
			return claim(t, s, ordered)[0].Claim
		}
		failure := parkedrows.Failure{Err: errHandler, Reason: "exhausted", Attempts: 1}
		delivery := func(c *parkedrows.Claim) *parkedrows.Delivery {
			return &parkedrows.Delivery{Consumer: "c", Topic: "t", Claim: c}
		}
		turn := chain.Turn{AggregateType: "a", AggregateID: "1", Sequence: "1:a1", Version: 3}
		record := func(ctx context.Context, tx *sql.Tx, _ int64) (func(), error) {
			_, err := tx.ExecContext(ctx, `DELETE FROM once_parked WHERE id < 0`)
			return nil, err
		}
		inTx := func(s *parkedrows.Store, work func(tx *sql.Tx) error) error {
			return s.Dialect().Write(t.Context(), s.DB(), work)
		}
		resolved, kept, postponed, released, handedBack, early, quarantined, extended := heads("a"), heads("b"), heads("c"), heads("d"),
			heads("e"), heads("f"), heads("g"), heads("h")
		kept.Keep = true

		operations := []struct {
			name string
			do   func(s *parkedrows.Store) error
		}{
			{"deliver", func(s *parkedrows.Store) error {
				return s.DeliverTo(t.Context(), "t", inOrder, keyed("m1", "m"), keyed("m2", "m"), keyed("a2", "a"), message.NewMessage("m3", nil))
			}},
			{"publish", func(s *parkedrows.Store) error {
				_, err := s.Publish(t.Context(), "t", keyed("n1", "n"), message.NewMessage("n2", nil))
				return err
			}},
			{"park", func(s *parkedrows.Store) error {
				return s.Park(t.Context(), delivery(nil), keyed("o1", "o"), failure, 0)
			}},
			{"park early", func(s *parkedrows.Store) error {
				return s.ParkEarly(t.Context(), delivery(nil), message.NewMessage("q1", nil), turn, time.Hour)
			}},
			{"postpone until the turn", func(s *parkedrows.Store) error {
				return s.ParkEarly(t.Context(), delivery(early), keyed("f1", "f"), turn, time.Hour)
			}},
			{"quarantine a delivery", func(s *parkedrows.Store) error {
				_, err := s.Quarantine(t.Context(), delivery(nil), message.NewMessage("r1", nil), failure, record)
				return err
			}},
			{"quarantine a claim", func(s *parkedrows.Store) error {
				_, err := s.Quarantine(t.Context(), delivery(quarantined), keyed("g1", "g"), failure, record)
				return err
			}},
			{"resolve", func(s *parkedrows.Store) error { return s.Resolve(t.Context(), resolved, kept) }},
			{"postpone", func(s *parkedrows.Store) error { return s.Postpone(t.Context(), "c", postponed, failure, time.Hour) }},
			{"release", func(s *parkedrows.Store) error { return s.Release(t.Context(), released, time.Hour) }},
			{"hand back", func(s *parkedrows.Store) error { return s.HandBack(t.Context(), []*parkedrows.Claim{handedBack}) }},
			{"extend", func(s *parkedrows.Store) error {
				return s.Extend(t.Context(), time.Hour, []*parkedrows.Claim{extended})
			}},
			{"count", func(s *parkedrows.Store) error {
				_, err := s.Backlog(t.Context())
				return err
			}},
			{"claim", func(s *parkedrows.Store) error {
				_, err := s.Claim(t.Context(), ordered)
				return err
			}},
			{"enter into the inbox", func(s *parkedrows.Store) error {
				return inTx(s, func(tx *sql.Tx) error {
					_, err := s.Tombstone(t.Context(), tx, "c", "m3", parkedrows.Encode(message.NewMessage("m3", nil)))
					return err
				})
			}},
			{"ask the inbox", func(s *parkedrows.Store) error {
				return inTx(s, func(tx *sql.Tx) error {
					_, err := s.Handled(t.Context(), tx, extended.ID)
					return err
				})
			}},
			{"ask the inbox for a claim", func(s *parkedrows.Store) error {
				_, err := s.Applied(t.Context(), parkedrows.Claimed{Claim: extended, Message: keyed("h1", "h")})
				return err
			}},
			{"replace heads", func(s *parkedrows.Store) error {
				rows := func(*sql.Tx) ([]int64, error) { return []int64{extended.ID}, nil }
				return s.ReplaceHeads(t.Context(), rows, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(t.Context(), `DELETE FROM once_parked WHERE id = $1`, extended.ID)
					return err
				})
			}},
			{"forget", func(s *parkedrows.Store) error {
				_, err := s.Forget(t.Context(), "t", "c", 0, 10)
				return err
			}},
			{"register", func(s *parkedrows.Store) error {
				_, err := s.Register(t.Context(), parkedrows.Consumer{Consumer: "new", Topic: "t", Owner: "me", Handler: "h"})
				return err
			}},
			{"leave", func(s *parkedrows.Store) error { return s.Leave(t.Context(), "new", "t", "me") }},
			{"remove a consumer", func(s *parkedrows.Store) error {
				return inTx(s, func(tx *sql.Tx) error {
					_, err := s.Remove(t.Context(), tx, "new", "t", true)
					return err
				})
			}},
		}
		for _, o := range operations {
			t.Run(o.name, func(t *testing.T) {
				kit.EachStepFails(t, db, true, func(db *sql.DB) error {
					s, err := parkedrows.NewStore(db, config)
					if err != nil {
						return err
					}
					return o.do(s)
				})
			})
		}

		// These operations have several transactions.
		if _, err := db.ExecContext(t.Context(), `DELETE FROM once_parked WHERE message_id = 'd1'`); err != nil { // d2 has no head now
			t.Fatal(err)
		}
		seen := s.Dialect().SQL(`UPDATE {consumers} SET seen_at = {after $1}`)
		kit.Exec(t, db, seen, -time.Hour.Milliseconds())
		for _, o := range []struct {
			name string
			do   func(s *parkedrows.Store) error
		}{
			{"repair keys", func(s *parkedrows.Store) error {
				_, err := s.RepairKeys(t.Context(), "c", "t", parkedrows.BlockWhileRetried)
				return err
			}},
			{"unregister", func(s *parkedrows.Store) error {
				_, err := s.Unregister(t.Context(), "embedded", "t")
				return err
			}},
		} {
			t.Run(o.name, func(t *testing.T) {
				kit.EachStepFails(t, db, false, func(db *sql.DB) error {
					s, err := parkedrows.NewStore(db, config)
					if err != nil {
						return err
					}
					return o.do(s)
				})
			})
		}
	})
}
