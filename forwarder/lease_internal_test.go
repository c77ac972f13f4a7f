package forwarder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
)

// After a failure, work is not tried again before its pause has ended. The loop wakes
// up then.
func TestFailedWorkWaitsForTheEndOfItsPause(t *testing.T) {
	now := time.Now()
	l := &loop{wakeAt: now.Add(time.Hour)}
	f := fault{until: now.Add(time.Minute)}
	require.True(t, f.waits(l, now))
	require.Equal(t, f.until, l.wakeAt)

	l.wakeAt = now.Add(time.Hour)
	require.False(t, f.waits(l, f.until))
	require.False(t, new(fault).waits(l, now), "nothing has failed")
	require.Equal(t, now.Add(time.Hour), l.wakeAt)
}

func TestNumberOfSlotsIsLoggedOnlyIfItHasChanged(t *testing.T) {
	logs := &testkit.Logs{}
	l := &loop{Forwarder: &Forwarder{config: Config{Logger: logs}}}
	for _, slots := range []int{0, 0, 5, 5, 0, 5} {
		l.logShare(slots, 2)
	}
	waiting := "INFO Other instances forward, waiting"
	require.Equal(t, 2, logs.Count(waiting, "slots=0", "instances=2"), logs.Lines())
	require.Equal(t, 2, logs.Count("INFO Forwarding", "slots=5", "instances=2"), logs.Lines())
	require.Len(t, logs.Lines(), 4)
}

// A read that finds slots without an owner has the lease asked for soon. It never
// postpones the next request.
func TestUnownedSlotsAreAskedForSoon(t *testing.T) {
	now := time.Now()
	for lease, soon := range map[time.Duration]time.Duration{time.Minute: time.Second, 1500 * time.Millisecond: 500 * time.Millisecond} {
		l := &loop{Forwarder: &Forwarder{config: Config{Lease: lease}}}
		l.tenure.asked, l.tenure.next = now, now.Add(lease)
		l.unowned()
		require.Equal(t, now.Add(soon), l.tenure.next, lease)

		l.tenure.next = now.Add(soon / 2)
		l.unowned()
		require.Equal(t, now.Add(soon/2), l.tenure.next, lease)
	}
}
