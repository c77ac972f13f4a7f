package retry

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

func add(l *fairQueue, tenant string, count int) {
	for n := range count {
		l.add(parked.Claimed{
			Claim:   &parked.Claim{Turn: parked.TenantTurn{PriorityClass: "live", Tenant: tenant}},
			Message: message.NewMessage(fmt.Sprint(tenant, n), nil),
		})
	}
}

// A tenant with few messages must not wait for all messages of another tenant. Messages
// of one tenant must keep their order.
func TestFairQueueTenantsTakeTurns(t *testing.T) {
	l := newFairQueue(nil)
	add(l, "a", 64)
	add(l, "b", 3)
	add(l, "c", 1)
	got := ""
	for range 8 {
		c, _ := l.next()
		got += c.Message.UUID + " "
	}
	if want := "a0 b0 c0 a1 b1 a2 b2 a3 "; got != want {
		t.Errorf("handed out %s, want %s", got, want)
	}
	if left := l.clear(); len(left) != 60 || l.len() != 0 {
		t.Errorf("%d claims are returned, %d stay", len(left), l.len())
	}
	add(l, "d", 1)
	l.close()
	if c, ok := l.next(); !ok || c.Message.UUID != "d0" {
		t.Error("the queued message is gone")
	}
	if _, ok := l.next(); ok {
		t.Error("next returns a message after the end of the queue")
	}
}

// During a shutdown the queue must not return any message, because the fetcher releases
// the queued messages.
func TestFairQueueHandsOutNothingDuringShutdown(t *testing.T) {
	closing := make(chan struct{})
	l := newFairQueue(closing)
	add(l, "a", 2)
	if _, ok := l.next(); !ok {
		t.Error("nothing was handed out")
	}
	close(closing)
	if c, ok := l.next(); ok {
		t.Errorf("%s was handed out", c.Message.UUID)
	}
	if left := l.clear(); len(left) != 1 {
		t.Errorf("%d are left", len(left))
	}
}
