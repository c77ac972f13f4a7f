package recipes

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/watermill-once/once/examples/recipes/ent"
	"github.com/watermill-once/once/examples/recipes/ent/order"
)

// The hook of ent stores one event for each order that is created, updated or deleted,
// also if one statement changes many orders. After a rollback there are no events.
func TestEntStoresAnEventForEachChange(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		ctx := t.Context()
		create := func(client *ent.Client, id string) *ent.OrderCreate {
			return client.Order.Create().SetID(id).SetTotal(1290)
		}

		err := EntWithEvents(ctx, db, func(client *ent.Client) error {
			if err := create(client, "17").Exec(ctx); err != nil {
				return err
			}
			return errUndone
		})
		if !errors.Is(err, errUndone) {
			t.Fatalf("EntWithEvents: got %v, want errUndone", err)
		}
		if got := eventsIn(t, db); len(got) != 0 {
			t.Fatalf("eventsIn is %q, want none", got)
		}

		err = EntWithEvents(ctx, db, func(client *ent.Client) error {
			return client.Order.CreateBulk(create(client, "17"), create(client, "18"), create(client, "19")).Exec(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := eventsIn(t, db), []string{"orders.placed 17", "orders.placed 18", "orders.placed 19"}; !slices.Equal(got, want) {
			t.Fatalf("eventsIn is %q, want %q", got, want)
		}

		err = EntWithEvents(ctx, db, func(client *ent.Client) error {
			// After the update, no order matches the condition.
			if err := client.Order.Update().Where(order.IDIn("17", "18"), order.Total(1290)).SetTotal(990).Exec(ctx); err != nil {
				return err
			}
			if err := client.Order.UpdateOneID("18").AddTotal(10).Exec(ctx); err != nil {
				return err
			}
			_, err := client.Order.Delete().Where(order.Total(1290)).Exec(ctx)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"orders.changed 17", "orders.changed 18", "orders.changed 18", "orders.removed 19"}
		if got := eventsIn(t, db); !slices.Equal(got, want) {
			t.Fatalf("eventsIn is %q, want %q", got, want)
		}
	})
}

// If ent or the caller begins a transaction with the client, no new transaction begins:
// the client uses the transaction of EntTransaction. If ent or the caller rolls it
// back, all work is rolled back.
func TestEntTransactionInside(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		inside := func(end func(tx *ent.Tx) error) error {
			return EntWithEvents(t.Context(), db, func(client *ent.Client) error {
				tx, err := client.Tx(t.Context())
				if err != nil {
					return err
				}
				if err := tx.Order.Create().SetID("17").SetTotal(1290).Exec(t.Context()); err != nil {
					return err
				}
				return end(tx)
			})
		}
		if err := inside((*ent.Tx).Rollback); !errors.Is(err, errNested) {
			t.Fatalf("inside: got %v, want errNested", err)
		}
		orders, events := stored(t, db)
		if orders != 0 || events != 0 {
			t.Fatalf("orders and events are %d and %d, want 0 and 0", orders, events)
		}

		if err := inside((*ent.Tx).Commit); err != nil {
			t.Fatal(err)
		}
		orders, events = stored(t, db)
		if orders != 1 || events != 1 {
			t.Fatalf("orders and events are %d and %d, want 1 and 1", orders, events)
		}
	})
}

// eventsIn removes the events from the outbox, and returns the topic and the payload of each.
func eventsIn(t *testing.T, db *sql.DB) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT topic || ' ' || convert_from(payload, 'UTF8') FROM once_outbox ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var event string
		if err := rows.Scan(&event); err != nil {
			t.Fatal(err)
		}
		all = append(all, event)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), `DELETE FROM once_outbox`); err != nil {
		t.Fatal(err)
	}
	return all
}
