package parked_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// A name that a text column cannot store unchanged can be found again under the
// original name.
func TestUnusualNamesAreFoundAgain(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		name, topic, owner := "c\x00", strings.Repeat("t", 300), "o\xff"
		own := parked.Consumer{Consumer: name, Topic: topic, Owner: owner, Embedded: true, KeyOrder: true}
		for n := range 2 {
			before, err := s.Register(t.Context(), own)
			if err != nil || (before != nil) != (n == 1) {
				t.Fatalf("registered before: %+v, %v", before, err)
			}
		}
		if to, err := s.Publish(t.Context(), topic, keyed("a1", "a"), keyed("a2", "a")); err != nil || len(to) != 1 {
			t.Fatalf("published to %+v, %v", to, err)
		}
		exec(t, s, `DELETE FROM {parked} WHERE message_id = 'a1'`)
		if n, err := s.RepairKeys(t.Context(), name, topic, parked.BlockWhileRetried); err != nil || n != 1 {
			t.Errorf("%d keys are repaired, %v", n, err)
		}
		sel := selection
		sel.Consumer, sel.Topic, sel.Keep = "c\uFFFD", topic[:255], true
		claimed := claim(t, s, sel)
		if len(claimed) != 1 {
			t.Fatalf("claimed %+v", claimed)
		}
		if err := s.Resolve(t.Context(), claimed[0].Claim); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Forget(t.Context(), topic, name, -time.Minute, 10); err != nil || n != 1 {
			t.Errorf("%d handled messages are deleted, %v", n, err)
		}
		if err := s.Leave(t.Context(), name, topic, owner); err != nil {
			t.Error(err)
		}
		var instances int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_consumer_instances`).Scan(&instances); err != nil || instances != 0 {
			t.Errorf("%d instances are left, %v", instances, err)
		}
		if err := s.Deliver(t.Context(), topic, []string{name}, message.NewMessage("m", nil)); err != nil {
			t.Fatal(err)
		}
		exec(t, s, `UPDATE {consumers} SET seen_at = {after $1}`, -time.Hour.Milliseconds())
		if n, err := s.Unregister(t.Context(), name, topic); err != nil || n != 1 {
			t.Errorf("%d messages are deleted, %v", n, err)
		}
	})
}
