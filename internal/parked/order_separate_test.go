package parked_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/testkit/rows"
)

// Two subscriptions with the same ordering key have separate orders, if their consumers
// or their topics differ.
func TestKeyOrderOfEachSubscriptionIsSeparate(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		subscriptions := [][2]string{{"c", "t"}, {"c", "u"}, {"d", "t"}}
		for n := 1; n <= 3; n++ {
			for _, sub := range subscriptions {
				to := []parked.Subscription{{Consumer: sub[0], KeyOrder: true}}
				if err := s.DeliverTo(t.Context(), sub[1], to, keyed(fmt.Sprintf("%s/%s %d", sub[0], sub[1], n), "key")); err != nil {
					t.Fatal(err)
				}
			}
		}
		states := map[string]string{}
		expect := func(when string) {
			t.Helper()
			for _, row := range rows.Parked(t, s) {
				if row.State != states[row.MessageID] {
					t.Errorf("%s: %s is %s, want %s", when, row.MessageID, row.State, states[row.MessageID])
				}
			}
		}
		for _, sub := range subscriptions {
			for n := 1; n <= 3; n++ {
				states[fmt.Sprintf("%s/%s %d", sub[0], sub[1], n)] = map[bool]string{true: parked.Waiting, false: parked.Held}[n == 1]
			}
		}
		expect("after the delivery")
		for _, sub := range slices.Backward(subscriptions) {
			sel, name := selection, sub[0]+"/"+sub[1]
			sel.Consumer, sel.Topic = sub[0], sub[1]
			if err := s.Resolve(t.Context(), claim(t, s, sel)[0].Claim); err != nil {
				t.Fatal(err)
			}
			states[name+" 2"] = parked.Waiting
			expect("after the head of " + name)
		}
	})
}

// If somebody has deleted a head, a new message does not overtake the messages that are
// still held.
func TestKeyOrderNewMessageWaitsBehindHeldMessages(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		if err := s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a")); err != nil {
			t.Fatal(err)
		}
		exec(t, s, `DELETE FROM {parked} WHERE message_id = 'a1'`)
		if err := s.DeliverTo(t.Context(), "t", inOrder, keyed("a3", "a")); err != nil {
			t.Fatal(err)
		}
		if claimed := claim(t, s, selection); len(claimed) != 0 {
			t.Errorf("%s was claimed before a2", claimed[0].Message.UUID)
		}
		if n, err := s.RepairKeys(t.Context(), "c", "t", parked.BlockWhileRetried); n != 1 || err != nil {
			t.Errorf("%d keys are repaired, %v", n, err)
		}
		if claimed := claim(t, s, selection); len(claimed) != 1 || claimed[0].Message.UUID != "a2" {
			t.Errorf("claimed %+v, want a2", claimed)
		}
	})
}
