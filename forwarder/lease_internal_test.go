package forwarder

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

// After a failure, work is not tried again before its pause has ended. The loop wakes
// up then.
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

// A read that finds slots without an owner has the lease asked for soon. It never
// postpones the next request.
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
