package parked_test

import (
	"database/sql"
	"testing"
	"time"

	store "github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/parked"
)

// If a step of an operation fails in the database, the operation must return the error
// and change nothing.
func TestOperationWithAFailedStepChangesNothing(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.seed()
		if _, err := b.store.Register(t.Context(), store.Consumer{Consumer: "stopped", Topic: topic, Owner: "host/1/a"}); err != nil {
			t.Fatal(err)
		}
		all := parked.Filter{All: true}
		for _, o := range []struct {
			name    string
			batches bool // the operation has several transactions
			do      func(m *parked.Messages) error
		}{
			{"list", true, func(m *parked.Messages) error {
				_, err := m.List(t.Context(), parked.Filter{OrderingKey: "k"})
				return err
			}},
			{"get", false, func(m *parked.Messages) error {
				_, err := m.Get(t.Context(), b.id("due"))
				return err
			}},
			{"count", false, func(m *parked.Messages) error {
				_, err := m.Count(t.Context(), parked.Filter{MessageID: "due"})
				return err
			}},
			{"consumers", false, func(m *parked.Messages) error {
				_, err := m.Consumers(t.Context())
				return err
			}},
			{"dry run", false, func(m *parked.Messages) error {
				_, err := m.DryRun(t.Context(), parked.Discard, all)
				return err
			}},
			{"run now", false, func(m *parked.Messages) error { return m.RunNow(t.Context(), ann, b.id("failed")) }},
			{"cancel", false, func(m *parked.Messages) error { return m.Cancel(t.Context(), ann, b.id("failed")) }},
			{"discard", false, func(m *parked.Messages) error { return m.Discard(t.Context(), ann, b.id("head")) }},
			{"run matching", true, func(m *parked.Messages) error {
				_, err := m.RunNowMatching(t.Context(), ann, all, parked.Plan{})
				return err
			}},
			{"discard matching", true, func(m *parked.Messages) error {
				_, err := m.DiscardMatching(t.Context(), ann, all, parked.Plan{})
				return err
			}},
			{"remove a consumer", false, func(m *parked.Messages) error {
				return m.RemoveConsumer(t.Context(), ann, "stopped", topic, parked.RemoveOptions{Force: true})
			}},
		} {
			t.Run(o.name, func(t *testing.T) {
				if o.name == "run now" || o.name == "run matching" {
					b.exec(`UPDATE once_parked SET due_at = ` + b.fromNow(time.Hour) + ` WHERE state = 'waiting'`)
				}
				testkit.EachStepFails(t, db, !o.batches, func(db *sql.DB) error {
					m, err := parked.New(db, parked.Config{Schema: b.config})
					if err != nil {
						return err
					}
					return o.do(m)
				})
			})
		}
	})
}
