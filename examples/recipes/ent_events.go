package recipes

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/examples/recipes/ent"
	"github.com/watermill-once/once/examples/recipes/ent/hook"
	"github.com/watermill-once/once/outbox"
)

// The topics of the events about orders that EntWithEvents publishes.
const (
	topicChanged = "orders.changed"
	topicRemoved = "orders.removed"
)

// EntWithEvents calls the function work in a transaction. A hook of ent stores an event
// for each order that the function creates, updates or deletes, in the same transaction.
// The hook belongs to the client of this transaction, and no event stays in memory. So
// you need not clear anything after the commit, and a rollback removes the events.
func EntWithEvents(ctx context.Context, db *sql.DB, work func(client *ent.Client) error) error {
	return EntTransaction(ctx, db, func(client *ent.Client, events message.Publisher) error {
		client.Order.Use(publishChanges(events))
		return work(client)
	})
}

// publishChanges returns the hook that EntWithEvents uses. If your own events need more
// than the id, take the new values from the mutation, for example m.Total().
func publishChanges(events message.Publisher) ent.Hook {
	return func(next ent.Mutator) ent.Mutator {
		return hook.OrderFunc(func(ctx context.Context, m *ent.OrderMutation) (ent.Value, error) {
			ids, about, err := changing(ctx, m)
			if err != nil {
				return nil, err
			}
			value, err := next.Mutate(ctx, m)
			if err != nil {
				return nil, err
			}
			for _, id := range ids {
				event := outbox.NewMessage([]byte(id))
				outbox.SetOrderingKey(event, id)
				if err := events.Publish(about, event); err != nil {
					return nil, err
				}
			}
			return value, nil
		})
	}
}

// changing returns the ids of the orders that a mutation is about to change, and the
// topic of their events. It is called before the change, because after an update the
// condition of the mutation may no longer match the orders, and a deleted order cannot be
// read.
func changing(ctx context.Context, m *ent.OrderMutation) (ids []string, about string, err error) {
	if m.Op().Is(ent.OpCreate) {
		id, _ := m.ID() // it has no default, so ent refuses an order without one
		return []string{id}, topic, nil
	}
	about = topicChanged
	if m.Op().Is(ent.OpDelete | ent.OpDeleteOne) {
		about = topicRemoved
	}
	ids, err = m.IDs(ctx)
	return ids, about, err
}
