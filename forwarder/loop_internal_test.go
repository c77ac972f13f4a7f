package forwarder

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// idle returns a loop that does not run, and its log.
func idle() (*loop, *kit.Logs) {
	logs := &kit.Logs{}
	config := Config{Logger: logs}.withDefaults()
	return newLoop(&Forwarder{
		config: config, store: &store{destination: "here"}, sender: newSender(nil, 1), running: make(chan struct{}),
		instruments: newInstruments(config),
	}), logs
}

func numbers(n int64) (list []int64) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// An instance keeps its share of the slots, and gives back the other slots when none of
// their messages is in flight.
func TestLeaseLeavesOtherInstancesTheirShare(t *testing.T) {
	t.Parallel()
	l, logs := idle()
	now := time.Now()
	expect := func(slots, leaving []int64, next time.Duration) {
		t.Helper()
		if got := l.scheduler.Slots(); !slices.Equal(got, slots) || !slices.Equal(l.tenure.leaving, leaving) {
			t.Fatalf("slots %v, leaving %v, want %v and %v", got, l.tenure.leaving, slots, leaving)
		}
		if !l.tenure.until.Equal(now.Add(15*time.Second)) || !l.tenure.next.Equal(now.Add(next)) || l.tenure.busy {
			t.Fatalf("until %v, next %v, busy %t", l.tenure.until.Sub(now), l.tenure.next.Sub(now), l.tenure.busy)
		}
		if got := l.sender.lease.Load(); got != int64(now.Add(15*time.Second).Sub(l.sender.begun)) {
			t.Fatalf("messages are sent for %v", time.Duration(got))
		}
	}
	l.tenure.busy = true
	l.tenure.rival = 7
	l.leased(leaseRequest{length: 15 * time.Second}, tenancy{slots: []int64{5, 3, 1, 0, 2, 4}, share: 4, instances: 2}, now, nil)
	expect(numbers(4), []int64{4, 5}, 5*time.Second)
	if l.tenure.rival != 0 {
		t.Error("the instance with another destination is still awaited")
	}
	select {
	case <-l.running:
	default:
		t.Error("it does not run")
	}

	// Slots that are leaving are not used, and no other slots leave meanwhile.
	l.leased(leaseRequest{length: 15 * time.Second}, tenancy{slots: numbers(6), share: 3, instances: 2}, now, nil)
	expect(numbers(4), []int64{4, 5}, 5*time.Second)
	l.leased(leaseRequest{length: 15 * time.Second, back: []int64{4, 5}}, tenancy{slots: numbers(4), share: 4, instances: 2}, now, nil)
	expect(numbers(4), nil, 5*time.Second)
	if got := logs.Count("taken over"); got != 0 || l.sender.gate.Load() {
		t.Fatalf("%d lines about lost slots: %q", got, logs.Lines())
	}

	// With fewer slots than its share, it asks again soon.
	l.sender.gate.Store(true)
	l.leased(leaseRequest{length: 15 * time.Second}, tenancy{slots: numbers(3), share: 4, instances: 2}, now, nil)
	expect(numbers(3), nil, time.Second)
	if l.sender.gate.Load() || logs.Count("INFO Another instance has taken over slots", "slots=1") != 1 {
		t.Fatalf("slots were lost, and messages are sent: %t; %q", l.sender.gate.Load(), logs.Lines())
	}
	if l.tenure.short {
		t.Error("no slot is avoided")
	}
	if logs.Count("INFO Forwarding", "slots=4") != 1 || logs.Count("INFO Forwarding", "slots=3") != 1 {
		t.Errorf("got %q", logs.Lines())
	}
}

// When the lease has ended, nothing is sent, even while the request to renew it is under
// way. Before that, the loop plans to wake up at the end of the lease, or earlier for
// the next request.
func TestEndOfTheLeaseStopsForwarding(t *testing.T) {
	t.Parallel()
	l, logs := idle()
	now := time.Now()
	end := now.Add(time.Second)
	l.scheduler.SetSlots([]int64{1, 2})
	l.tenure.until, l.tenure.busy = end, true
	l.wakeAt = now.Add(time.Hour)
	l.keepLease(end.Add(-1))
	if len(l.scheduler.Slots()) != 2 || !l.wakeAt.Equal(end) {
		t.Fatalf("slots %v, wakes up after %v", l.scheduler.Slots(), l.wakeAt.Sub(now))
	}
	l.keepLease(end)
	if len(l.scheduler.Slots()) != 0 || logs.Count("INFO The lease has run out, forwarding stops") != 1 {
		t.Fatalf("slots %v, log %q", l.scheduler.Slots(), logs.Lines())
	}

	l.tenure.busy, l.tenure.next = false, now.Add(time.Minute)
	l.wakeAt = now.Add(time.Hour)
	l.keepLease(now.Add(time.Minute - 1))
	if l.asked != 0 || !l.wakeAt.Equal(now.Add(time.Minute)) {
		t.Fatalf("%d requests, wakes up after %v", l.asked, l.wakeAt.Sub(now))
	}
	for _, stop := range []func(){
		func() { l.releasing = true },
		func() { l.releasing = false; l.tenure.fault.until = now.Add(time.Hour) },
		func() { l.tenure.fault.until = time.Time{}; l.scheduler.Stop(now) },
	} {
		stop()
		if l.keepLease(now.Add(time.Minute)); l.asked != 0 {
			t.Fatal("it asks for slots")
		}
	}
}

// A failed lease request is logged once. The next success is logged, too.
func TestFailedLeaseIsLoggedOnce(t *testing.T) {
	t.Parallel()
	l, logs := idle()
	now := time.Now()
	failure := errors.New("no database")
	for attempt := range 3 {
		l.tenure.busy = true
		l.leased(leaseRequest{}, tenancy{}, now, failure)
		least, most := 40*time.Millisecond<<attempt, 60*time.Millisecond<<attempt
		if wait := time.Until(l.tenure.fault.until); l.tenure.busy || l.tenure.fault.attempts != attempt+1 || wait > most ||
			wait < least-10*time.Second {
			t.Fatalf("attempt %d is followed by a pause of %v", l.tenure.fault.attempts, wait)
		}
	}
	if logs.Count("ERROR The lease could not be renewed, trying again", failure.Error()) != 1 {
		t.Fatalf("got %q", logs.Lines())
	}
	for range 2 {
		l.leased(leaseRequest{}, tenancy{share: 64, instances: 1}, now, nil)
	}
	if logs.Count("INFO The lease could be renewed again") != 1 || l.tenure.fault != (fault{}) {
		t.Fatalf("got %q", logs.Lines())
	}
	select {
	case <-l.running:
	default:
		t.Error("it does not run")
	}

	var f fault
	f.failed(l, retentionTexts, kit.ErrInjected)
	if !f.worked(l, retentionTexts) || f.worked(l, retentionTexts) {
		t.Error("only the first success follows a failure")
	}
}

// If another instance has another destination, this instance first waits. If the other
// instance renews its lease, it is alive, and this instance ends.
func TestInstanceGivesWayToOneThatRenewsItsLease(t *testing.T) {
	t.Parallel()
	l, logs := idle()
	now := time.Now()
	l.scheduler.SetSlots([]int64{1})
	l.sender.gate.Store(true)
	other := &otherDestinationError{owner: "other", destination: "there", until: 100}
	for range 2 {
		l.leased(leaseRequest{}, tenancy{}, now, other)
		if len(l.scheduler.Slots()) != 0 || l.sender.gate.Load() || l.refusal != nil || !l.tenure.fault.until.Equal(now.Add(time.Second)) {
			t.Fatalf("slots %v, sends %t, refusal %v", l.scheduler.Slots(), l.sender.gate.Load(), l.refusal)
		}
	}
	if got := logs.Count("INFO Another instance has another destination", "destination=here", "other_instance=other",
		"other_destination=there"); got != 1 {
		t.Fatalf("got %q", logs.Lines())
	}
	other.until++
	l.leased(leaseRequest{}, tenancy{}, now, other)
	if !errors.Is(l.refusal, ErrOtherDestination) || !l.scheduler.Stopping() ||
		logs.Count("ERROR Another instance forwards to another") != 1 {
		t.Fatalf("refusal %v, log %q", l.refusal, logs.Lines())
	}
	other.until++
	l.leased(leaseRequest{}, tenancy{}, now, other)
	if logs.Count("ERROR") != 1 {
		t.Fatalf("it ends twice: %q", logs.Lines())
	}
	l.logDestination(nil)
	before := len(logs.Lines())
	l.logDestination(&predecessor{})
	if len(logs.Lines()) != before+1 || logs.Count("INFO The destination of the outbox has changed", "from=unknown", "to=here") != 1 {
		t.Fatalf("got %q", logs.Lines())
	}
}

// Old rows of the sent log are deleted in batches, from time to time. If more old rows
// are left, the next batch follows after a pause that is as long as the last batch took.
func TestSentLogIsForgottenFromTimeToTime(t *testing.T) {
	t.Parallel()
	l, logs := idle()
	for keep, pause := range map[time.Duration]time.Duration{time.Minute: time.Second, 24 * time.Hour: time.Minute} {
		l.config.KeepSent = keep
		began := time.Now().Add(-100 * time.Millisecond)
		l.log.busy = true
		l.forgotSent(false, began, nil)
		if !l.log.next.Equal(began.Add(pause)) || l.log.busy {
			t.Errorf("rows are kept for %v: the next batch follows after %v, want %v", keep, l.log.next.Sub(began), pause)
		}
	}
	began := time.Now().Add(-time.Hour)
	l.forgotSent(true, began, nil)
	if wait := time.Until(l.log.next); wait > 61*time.Minute || wait < 50*time.Minute {
		t.Errorf("a batch took an hour, and the next follows after %v", wait)
	}
	for range 2 {
		l.forgotSent(false, began, errRefused)
	}
	if logs.Count("ERROR What was sent long ago could not be deleted, trying again") != 1 || l.log.fault.attempts != 2 ||
		l.log.portion.Of(1000) != 250 {
		t.Errorf("after two failures: %+v, %q", l.log, logs.Lines())
	}
	l.forgotSent(false, began, nil)
	if logs.Count("INFO What was sent long ago could be deleted again") != 1 || l.log.portion.Of(1000) != 500 {
		t.Errorf("after a success: %+v, %q", l.log, logs.Lines())
	}

	// Only the owner of slot 0 deletes, one batch at a time.
	now := time.Now()
	l.log = sentLog{next: now.Add(time.Minute)}
	l.scheduler.SetSlots([]int64{0, 1})
	l.wakeAt = now.Add(time.Hour)
	l.forgetSent(now)
	if l.asked != 0 || !l.wakeAt.Equal(now.Add(time.Minute)) {
		t.Errorf("%d requests, wakes up after %v", l.asked, l.wakeAt.Sub(now))
	}
	for name, change := range map[string]func(){
		"nothing is kept": func() { l.config.KeepSent = 0 },
		"under way":       func() { l.log.busy = true },
		"pausing":         func() { l.log.fault.until = now.Add(time.Hour) },
		"not the owner":   func() { l.scheduler.SetSlots([]int64{1}) },
		"stopping":        func() { l.scheduler.Stop(now) },
	} {
		l.config.KeepSent, l.log = time.Minute, sentLog{}
		l.scheduler.SetSlots([]int64{0, 1})
		change()
		if l.forgetSent(now); l.asked != 0 {
			t.Fatalf("%s: rows are deleted", name)
		}
	}
}

// The pause doubles from 50 ms to five seconds. Jitter changes a pause by at most a fifth,
// in both directions.
func TestPausesDouble(t *testing.T) {
	t.Parallel()
	for attempt, want := range map[int]time.Duration{
		1: 50 * time.Millisecond, 2: 100 * time.Millisecond, 7: 3200 * time.Millisecond, 8: 5 * time.Second, 1 << 30: 5 * time.Second,
	} {
		if got := pauses(attempt); got != want {
			t.Errorf("pauses(%d) is %v, want %v", attempt, got, want)
		}
	}
	var shortest, longest time.Duration = time.Hour, 0
	for range 10_000 {
		got := jitter(time.Second)
		shortest, longest = min(shortest, got), max(longest, got)
	}
	if shortest < 800*time.Millisecond || shortest > 850*time.Millisecond || longest > 1200*time.Millisecond ||
		longest < 1150*time.Millisecond {
		t.Errorf("a second becomes %v to %v, want 800ms to 1.2s", shortest, longest)
	}
}

// The query of a lookahead returns lists of pairs of numbers. Rows that it has found, but
// that were not read afterwards, count as skipped.
func TestLookaheadReadsListsOfPairs(t *testing.T) {
	t.Parallel()
	var got [][2]int64
	each := func(a, b int64) { got = append(got, [2]int64{a, b}) }
	for text, valid := range map[string]bool{
		"": true, "1:-2,3:4": true, "1:2,": false, "x:1": false, "1:x": false, "1": false, "9223372036854775808:1": false,
	} {
		if err := pairs(text, each); valid != (err == nil) {
			t.Errorf("%q: %v", text, err)
		}
		if text == "1:-2,3:4" && !slices.Equal(got[len(got)-2:], [][2]int64{{1, -2}, {3, 4}}) {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	looked := ahead{hashes: map[int64]int64{1: 10, 2: 20}, reach: dispatch.Reach{Skipped: []dispatch.Skipped{{Position: 9, KeyHash: 90}}}}
	m := &dispatch.Message{Position: 2}
	reach := looked.complete([]*dispatch.Message{m})
	if want := []dispatch.Skipped{{Position: 9, KeyHash: 90}, {Position: 1, KeyHash: 10}}; m.KeyHash != 20 ||
		!slices.Equal(reach.Skipped, want) {
		t.Errorf("the hash is %d, skipped are %v, want 20 and %v", m.KeyHash, reach.Skipped, want)
	}
	if lookaheadRows(schema.Config{Dialect: schema.SQLite}) != 0 || lookaheadRows(schema.Config{}) != 10_000 {
		t.Error("lookaheads examine another number of rows")
	}
}

// Pauses are a JSON list of kinds and names.
func TestPausesAreDecoded(t *testing.T) {
	t.Parallel()
	got, err := decodePauses(`[["tenant", "a"], ["topic", "b"], ["topic", "c"]]`)
	if err != nil || !slices.Equal(got.Topics, []string{"b", "c"}) || !slices.Equal(got.Tenants, []string{"a"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := decodePauses(""); err != nil || !got.None() {
		t.Errorf("got %+v, %v, want none", got, err)
	}
	if _, err := decodePauses(`[["topic"`); err == nil {
		t.Error("damaged pauses are accepted")
	}
}

// Each topic in Config.Topics has its own series for each outcome. All other topics
// share one series for each outcome.
func TestTopicsHaveTheirOwnSeries(t *testing.T) {
	t.Parallel()
	i := newInstruments(Config{Topics: []string{"a", "b", "a"}})
	if len(i.outcomes.counts) != 3*len(outcomeNames) || len(i.dead.counts) != 3*2 || len(i.stalled.counts) != 3 {
		t.Fatalf("%d outcomes, %d deaths, %d stalls", len(i.outcomes.counts), len(i.dead.counts), len(i.stalled.counts))
	}
	for topic, first := range map[string]int{"a": 0, "b": 5, "c": 10} {
		i.add(&i.outcomes, topic, int(Refused))
		if i.outcomes.counts[first+1] != 1 {
			t.Errorf("%s: the counts are %v", topic, i.outcomes.counts)
		}
		i.add(&i.stalled, topic, 0)
		if i.stalled.counts[first/5] != 1 {
			t.Errorf("%s: the stalls are %v", topic, i.stalled.counts)
		}
	}
	i.endRound()
	if slices.Max(i.outcomes.counts) != 0 {
		t.Errorf("after the round the counts are %v", i.outcomes.counts)
	}
}

// A publish without an error is confirmed, whatever Config.Classify would return for nil.
func TestClassifyIsNotCalledForConfirms(t *testing.T) {
	t.Parallel()
	l, _ := idle()
	l.config.Classify = func(error) Outcome { return Refused }
	if got, _, _ := l.classify(nil); got != Confirmed {
		t.Errorf("outcome is %v, want %v", got, Confirmed)
	}
	if got, _, _ := l.classify(errors.New("refused")); got != Refused {
		t.Errorf("outcome of an error is %v, want %v", got, Refused)
	}
}

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
	logs := &kit.Logs{}
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
	owner, exec := ownerOfAll(t, kit.SQLite(t))
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
	kit.OK(t, owner.db.QueryRowContext(t.Context(), query).Scan(&owned))
	if owned != 0 || len(l.tenure.leaving) != 0 || l.tenure.busy || len(s.Slots()) != 32 {
		t.Errorf("owners of the slot: %d; %v are leaving, and %d slots are left", owned, l.tenure.leaving, len(s.Slots()))
	}
}
