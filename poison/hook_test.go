package poison_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
)

// A hook that hangs or panics delays no ack.
func TestSlowOrPanickingHookDelaysNoAck(t *testing.T) {
	release, told := make(chan struct{}), make(chan string, 10)
	b := newBench(t, testkit.SQLite(t), func(c *poison.Config) {
		c.OnQuarantine = func(e poison.Entry) {
			<-release
			told <- e.MessageID
			if e.MessageID == "m1" {
				panic("hook")
			}
		}
	})
	b.quarantine("payments", "m1", "m2", "m3") // returns, though the hook has not
	close(release)
	for i := range 3 {
		if id := next(t, told); id != fmt.Sprint("m", i+1) {
			t.Errorf("told of %s", id)
		}
	}
}

// retry quarantines messages without a call of the handler through a Store of its
// own. The hook gets these entries too.
func TestHookGetsEntriesThatRetryQuarantines(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		told := make(chan poison.Entry, 10)
		first := newBench(t, db, func(c *poison.Config) {
			c.OnQuarantine = func(e poison.Entry) { e.Tenant = "first"; told <- e }
		})
		second, err := poison.New(db.DB, poison.Config{Schema: first.config, OnQuarantine: func(e poison.Entry) {
			e.Tenant = "second"
			told <- e
		}})
		if err != nil {
			t.Fatal(err)
		}
		idle, err := poison.New(db.DB, poison.Config{Schema: first.config, OnQuarantine: func(e poison.Entry) {
			t.Errorf("one without a Middleware was told of %s", e.MessageID)
		}})
		if err != nil || idle == nil {
			t.Fatal(err)
		}
		hears := func(want string) {
			t.Helper()
			if e := next(t, told); fmt.Sprint(e.Tenant, " ", e.MessageID, " ", e.Reason) != want {
				t.Errorf("told of %+v, want %s", e, want)
			}
		}
		first.quarantine("payments", "m1")
		hears("first m1 failed")
		first.store = second
		first.quarantine("inventory", "m2")
		hears("second m2 failed")
		for _, consumer := range []string{"inventory", "payments", "unknown"} {
			if err := first.parked.Deliver(t.Context(), "t", []string{consumer}, message.NewMessage("x", nil)); err != nil {
				t.Fatal(err)
			}
			claimed, err := first.parked.Claim(t.Context(), parked.Select{Consumer: consumer, Topic: "t", Limit: 1, Lease: time.Minute})
			if err != nil || len(claimed) != 1 {
				t.Fatalf("%v, %d claimed", err, len(claimed))
			}
			failure := parked.Failure{Err: errors.New("the process ended"), Reason: poison.ReasonCrashed}
			if err := first.parked.QuarantineClaim(t.Context(), consumer, claimed[0].Claim, failure); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"inventory": "second", "payments": "first", "unknown": "first"}[consumer]
			if e := next(t, told); e.Tenant != want || e.Consumer != consumer || e.Reason != poison.ReasonCrashed {
				t.Errorf("told of %+v, want it told to the %s", e, want)
			}
		}
		select {
		case e := <-told:
			t.Errorf("told too often, of %+v", e)
		default:
		}
	})
}

// next returns the next entry that the hook gets.
func next[T any](t *testing.T, told <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-told:
	case <-time.After(20 * time.Second):
		t.Fatal("the hook is not told")
	}
	return value
}
