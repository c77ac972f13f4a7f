package parked

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/testkit"
)

// Due finds only tenants with a due row, because a claim for other tenants would find
// no row. If a priority class has no due rows, Due does not look for its tenants.
func TestDueFindsOnlyTenantsWithDueRows(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := storeIn(t, db)
		for tenant, delay := range map[string]time.Duration{
			"a": time.Hour, "b": time.Millisecond, "c": time.Hour, "live": time.Hour, "replay": time.Hour,
		} {
			msg := message.NewMessage(tenant, nil)
			msg.Metadata[meta.TenantID] = tenant
			failure := Failure{Err: errors.New("handler failed")}
			if err := s.Park(t.Context(), &Delivery{Consumer: "consumer", Topic: "topic"}, msg, failure, delay); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.ExecContext(t.Context(),
			`UPDATE once_parked SET priority_class = message_id WHERE message_id IN ('live', 'replay')`); err != nil {
			t.Fatal(err)
		}
		var due *Due
		testkit.Eventually(t, 20*time.Second, "the row of b is due", func() bool {
			var err error
			if due, err = s.Due(t.Context(), Select{Consumer: "consumer", Topic: "topic"}); err != nil {
				t.Fatal(err)
			}
			return due.Fresh()
		})
		if got := due.tenants[retryClass]; !slices.Equal(got, []string{"b"}) {
			t.Errorf("Due found %q, want only b", got)
		}
		if want := [len(classes)]string{retryClass: "c"}; due.last != want {
			t.Errorf("the last tenants of the classes are %q, want %q", due.last, want)
		}
	})
}
