package parked_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/testkit/rows"
)

// If a consumer of the embedded transport registers again through another transport,
// its registration still says that it is embedded.
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

// If the encoding of the database cannot store a message, Publish tries again with
// escapes, and returns each consumer once. A trigger simulates such an encoding.
func TestPublishReturnsEachConsumerOnce(t *testing.T) {
	t.Parallel()
	store := newStore(t, testkit.Postgres(t))
	exec(t, store, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'no such character' USING ERRCODE = '22P05'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON once_parked FOR EACH ROW WHEN (NEW.tenant = 'ü') EXECUTE FUNCTION refuse()`)
	if _, err := store.Register(t.Context(), parked.Consumer{Consumer: "payments", Topic: "orders", Embedded: true, Owner: "a"}); err != nil {
		t.Fatal(err)
	}
	to, err := store.Publish(t.Context(), "orders", of("ü", "m1"))
	if err != nil || len(to) != 1 {
		t.Errorf("published to %+v, %v", to, err)
	}
	if all := rows.Parked(t, store); len(all) != 1 || all[0].Tenant != "<U+00FC>" {
		t.Errorf("the rows are %+v", all)
	}
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
