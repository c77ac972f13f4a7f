package forwarder

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
)

// After a failure, work is not tried again before its pause has ended. The loop wakes
// up when the pause ends.
func TestFailedWorkWaitsForTheEndOfItsPause(t *testing.T) {
	now := time.Now()
	f := fault{until: now.Add(time.Minute)}
	for _, c := range []struct {
		fault *fault
		at    time.Time
		waits bool
	}{{&f, now, true}, {&f, f.until, false}, {&fault{}, now, false}} {
		l := &loop{wakeAt: now.Add(time.Hour)}
		want := l.wakeAt
		if c.waits {
			want = f.until
		}
		if got := c.fault.waits(l, c.at); got != c.waits || !l.wakeAt.Equal(want) {
			t.Errorf("after %v waits is %t, and the loop wakes up after %v", c.at.Sub(now), got, l.wakeAt.Sub(now))
		}
	}
}

func TestNumberOfSlotsIsLoggedOnlyIfItHasChanged(t *testing.T) {
	logs := &testkit.Logs{}
	l := &loop{Forwarder: &Forwarder{config: Config{Logger: logs}}}
	for _, slots := range []int{0, 0, 5, 5, 0, 5} {
		l.logShare(slots, 2)
	}
	waiting := logs.Count("INFO Other instances forward, waiting", "slots=0", "instances=2")
	forwarding := logs.Count("INFO Forwarding", "slots=5", "instances=2")
	if waiting != 2 || forwarding != 2 || len(logs.Lines()) != 4 {
		t.Error(logs.Lines())
	}
}

// After a read has found slots without an owner, the loop asks for slots soon. This
// never postpones the next lease request.
func TestUnownedSlotsAreAskedForSoon(t *testing.T) {
	now := time.Now()
	for lease, soon := range map[time.Duration]time.Duration{time.Minute: time.Second, 1500 * time.Millisecond: 500 * time.Millisecond} {
		l := &loop{Forwarder: &Forwarder{config: Config{Lease: lease}}}
		l.tenure.asked = now
		for next, want := range map[time.Duration]time.Duration{lease: soon, soon / 2: soon / 2} {
			l.tenure.next = now.Add(next)
			if l.unowned(); !l.tenure.next.Equal(now.Add(want)) {
				t.Errorf("lease %v, next request after %v: becomes %v, want %v", lease, next, l.tenure.next.Sub(now), want)
			}
		}
	}
}

// An instance gives a slot back when none of its messages is in flight. Until then it
// does not ask for slots earlier than planned.
func TestSlotIsGivenBackWhenItsMessagesAreSettled(t *testing.T) {
	t.Parallel()
	l, _ := idle()
	owner, exec := ownerOfAll(t, testkit.SQLite(t))
	exec(owner.dialect.SQL(`INSERT INTO {forwarders} (owner, lease_until, destination) VALUES ('other', {after 60000}, '')`))
	l.store = owner
	s, now := l.scheduler, time.Now()
	s.SetSlots(numbers(33)) // with two instances, the share is 32
	s.RowsRead(now, s.Step(now).Read, []*dispatch.Message{{Position: 1, Topic: "t", Slot: 32}}, dispatch.Reach{
		Highest: 1, Covered: dispatch.Everything,
	})
	given := s.Step(now).Publish[0]
	s.LoseSlots([]int64{32})
	later := now.Add(time.Minute)
	l.tenure.leaving, l.tenure.short, l.tenure.next, l.tenure.until = []int64{32}, true, later, later
	if l.keepLease(now); l.asked != 0 || !l.tenure.next.Equal(later) || !l.tenure.short {
		t.Fatalf("a message is in flight: %d requests, the next after %v", l.asked, l.tenure.next.Sub(now))
	}

	s.Published(now, given, dispatch.NotSent, nil)
	l.tenure.busy = true
	if l.keepLease(now); l.asked != 0 || !l.tenure.next.Equal(now) || l.tenure.short {
		t.Fatalf("another request is under way: %d requests, the next after %v", l.asked, l.tenure.next.Sub(now))
	}
	l.tenure.busy, l.tenure.next = false, later
	if l.keepLease(now); l.asked != 1 || !l.tenure.busy {
		t.Fatalf("%d requests, want one", l.asked)
	}
	(<-l.done)()
	var owned int
	query := `SELECT COUNT(*) FROM once_slots WHERE owner IS NOT NULL AND slot = 32`
	if err := owner.db.QueryRowContext(t.Context(), query).Scan(&owned); err != nil {
		t.Fatal(err)
	}
	if owned != 0 || len(l.tenure.leaving) != 0 || l.tenure.busy || len(s.Slots()) != 32 {
		t.Errorf("owners of the slot: %d; %v are leaving, and %d slots are left", owned, l.tenure.leaving, len(s.Slots()))
	}
}
