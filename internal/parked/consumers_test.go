package parked_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// A renewal by a subscription through another transport keeps the mark of the
// embedded transport.
func TestRegistrationKeepsTheEmbeddedTransport(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		store := newStore(t, db)
		see := func(c parked.Consumer) *parked.Consumer {
			t.Helper()
			before, err := store.Register(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			return before
		}
		const topic = "orders"
		if before := see(parked.Consumer{Consumer: "broker's", Topic: topic, Owner: "a"}); before != nil {
			t.Errorf("it is new, and there is %+v", before)
		}
		see(parked.Consumer{Consumer: "payments", Topic: topic, Embedded: true, KeyOrder: true, Owner: "a"})
		before := see(parked.Consumer{Consumer: "payments", Topic: topic, KeyOrder: true, Owner: "b"})
		if before == nil || before.Owner != "a" || !before.Embedded || before.Program == "" || before.Absent() {
			t.Errorf("it was %+v", before)
		}
		to, err := store.Publish(t.Context(), topic, message.NewMessage("m1", nil))
		if err != nil || len(to) != 1 || to[0].Consumer != "payments" || !to[0].KeyOrder || to[0].Owner != "b" {
			t.Errorf("published to %+v, %v", to, err)
		}
		if to, err := store.Publish(t.Context(), "else", message.NewMessage("m1", nil)); err != nil || len(to) != 0 {
			t.Errorf("of another topic to %+v, %v", to, err)
		}
	})
}

// A subscription knows the name of its handler only after its first message. Its next
// registration records the name.
func TestRegistrationRecordsTheHandlerLater(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		store := newStore(t, db)
		for _, handler := range []string{"", "handler-1"} {
			c := parked.Consumer{Consumer: "payments", Topic: "orders", Owner: "a", Handler: handler}
			if _, err := store.Register(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			for _, table := range []string{"consumers", "consumer_instances"} {
				var recorded string
				if err := db.QueryRowContext(t.Context(), `SELECT handler FROM once_`+table).Scan(&recorded); err != nil || recorded != handler {
					t.Errorf("%s: %q, %v, want %q", table, recorded, err, handler)
				}
			}
		}
	})
}
