package recipes

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
)

// Save calls the function write in a transaction. In the same transaction, it stores the
// events that the object has recorded. After the commit the events are removed from the
// object. If Save fails, the object keeps them: call Save again, or drop the object.
func Save(ctx context.Context, db *sql.DB, object interface{ events() *Events }, write func(tx *sql.Tx) error) error {
	events := object.events()
	n := 0
	err := outbox.InTx(ctx, db, func(tx *sql.Tx, publisher message.Publisher) error {
		if err := write(tx); err != nil {
			return err
		}
		n = len(events.recorded)
		for _, e := range events.recorded {
			if err := publisher.Publish(e.topic, e.msg); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	events.recorded = events.recorded[n:]
	return nil
}
