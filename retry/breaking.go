package retry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
)

// breaker is the breaker of one subscription. Handlers report their calls to it. Its goroutine
// reads and writes the rows that all instances see. A nil breaker does nothing.
type breaker struct {
	*Retries

	instance parkedrows.Instance
	pauses   *parkedrows.PauseWatch
	closing  <-chan struct{}
	wake     chan struct{}

	mu     sync.Mutex
	window window
	state
	seen bool // the row of the open breaker was read
	free bool // a probe has succeeded

	// Attempts that are still to be given back, because another process has claimed the messages
	// or has not parked them yet.
	group    string
	charges  []parkedrows.Charge
	giveBack int // how many times this is tried

	failing bool // a failed step was logged

	changes chan BreakerChange // for Breaker.OnChange
}

// maxChanges is the number of changes that wait for a slow Breaker.OnChange. Further ones are
// only logged.
const maxChanges = 100

func newBreaker(f *fetcher) *breaker {
	if f.config.Breaker == nil {
		return nil
	}
	b := &breaker{
		Retries: f.Retries, instance: parkedrows.Instance{Consumer: f.consumer, Topic: f.topic, Owner: f.owner},
		pauses: f.pauses, closing: f.closing, wake: make(chan struct{}, 1),
		window:  window{failures: f.config.Breaker.Failures},
		changes: make(chan BreakerChange, maxChanges),
	}
	b.publish(time.Now())
	return b
}

func (b *breaker) wakeUp() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// publish tells the subscription what may start. The caller has locked b.mu.
func (b *breaker) publish(now time.Time) {
	probes := 0
	if row, _, _ := b.pauses.Row(); row != nil {
		probes = row.Probes
	} else if b.own != nil {
		probes = b.own.probes
	}
	b.pauses.SetBreaker(parkedrows.Breaker{Held: b.own != nil, Probe: b.probe.source(probes, now), Free: b.free})
}

func (b *breaker) probesBefore(row *parkedrows.Break) int {
	switch {
	case row != nil:
		return row.Probes + 1
	case b.own != nil:
		return b.own.probes + 1
	}
	return 1
}

// willGiveBack empties the window. The caller has locked b.mu.
func (b *breaker) willGiveBack(group string) {
	if charges := b.window.charges(group); len(charges) > 0 {
		b.group, b.charges, b.giveBack = group, append(b.charges, charges...), giveBackTries
	}
}

// giveBackTries limits how many times attempts are given back to messages that are claimed.
const giveBackTries = 60

// run changes the rows until the subscription ends.
func (b *breaker) run(closing context.Context) {
	ctx := context.WithoutCancel(closing)
	defer close(b.changes)
	if b.config.Breaker.OnChange != nil {
		go b.callOnChange()
	}
	for {
		_, _, changed := b.pauses.Row()
		next := time.NewTimer(b.step(ctx))
		select {
		case <-closing.Done():
			next.Stop()
			b.leave(ctx)
			return
		case <-b.wake:
		case <-changed:
		case <-next.C:
		}
		next.Stop()
	}
}

// leave lets another instance probe at once, if this one does.
func (b *breaker) leave(ctx context.Context) {
	b.mu.Lock()
	probes := b.probe != nil && !b.probe.lease.IsZero()
	b.mu.Unlock()
	if !probes {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	_, _ = b.store.ExtendProbe(ctx, b.instance, 0) // if it fails, the lease ends
}

// stepAgain is the pause after a failed step.
const stepAgain = time.Second

// step does what is due, and returns when to call it again.
func (b *breaker) step(ctx context.Context) (wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, b.config.Lease)
	defer cancel()
	row, operator, _ := b.pauses.Row()
	b.mu.Lock()
	b.see(row, operator)
	now := time.Now()
	next, until := b.next(row, b.instance.Owner, b.config.Lease, now)
	if operator {
		next, until = waits, now.Add(time.Hour)
	}
	b.publish(now)
	own, p := b.own, b.probe
	b.mu.Unlock()

	err := b.do(ctx, next, own, p)
	if err == nil {
		err = b.giveBackAttempts(ctx)
	}
	b.report(err)
	switch {
	case err != nil:
		return stepAgain
	case next != waits:
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.charges) > 0 {
		until = earlier(until, now.Add(stepAgain))
	}
	return time.Until(until)
}

// see notices that the row has appeared or disappeared. The caller has locked b.mu.
func (b *breaker) see(row *parkedrows.Break, operator bool) {
	switch {
	case operator:
		b.own, b.probe, b.seen, b.free = nil, nil, false, false
	case row != nil:
		if !b.seen {
			b.willGiveBack(row.Group)
		}
		if b.own != nil { // the row replaces what this instance has decided alone
			b.own, b.probe = nil, nil
		}
		b.seen = true
	case b.seen:
		b.own, b.probe, b.seen, b.free = nil, nil, false, false
		b.window.close()
	}
}

func (b *breaker) do(ctx context.Context, next step, own *opening, p *probe) error {
	set := func(change func()) {
		b.mu.Lock()
		defer b.mu.Unlock()
		change()
		b.publish(time.Now())
	}
	now := time.Now()
	switch next {
	case waits:
		return nil
	case tryAgain:
		since := now
		if p.result == noResult {
			since = since.Add(pauseAfterNoResult)
		}
		set(func() { b.probe = &probe{since: since, lease: p.lease} })
		return nil
	case startsOwn:
		set(func() { b.probe = &probe{since: now} })
		return nil
	case failsOwn:
		set(func() {
			own.probes++
			own.wait, own.until, own.told = p.wait, now.Add(p.wait), false
			b.probe = nil
		})
		return nil
	case closesOwn:
		set(func() {
			b.own, b.probe, b.free = nil, nil, false
			b.window.close()
		})
		b.changed(closedAlone, "")
		return nil
	default:
		if err := b.write(ctx, next, own, p, set); err != nil {
			return err
		}
		return b.pauses.Refresh(ctx)
	}
}

// write does a step that writes to the database.
func (b *breaker) write(ctx context.Context, next step, own *opening, p *probe, set func(change func())) error {
	now := time.Now()
	switch next {
	case tells:
		forAll, err := b.store.BreakerOpened(ctx, b.instance, own.group, own.why, own.wait)
		if err != nil {
			return err
		}
		if own.probes == 0 {
			b.changed(openedAlone, own.why)
		}
		if forAll {
			b.changed(opened, own.why)
		}
		set(func() { own.told, b.told, b.seen = true, true, forAll })
	case claims:
		claimed, err := b.store.ClaimProbe(ctx, b.instance, b.config.Lease)
		if err != nil || !claimed {
			return err
		}
		set(func() { b.probe = &probe{since: now, lease: now.Add(b.config.Lease)} })
	case closes:
		did, err := b.store.BreakerClosed(ctx, b.instance, "a message was handled")
		if err != nil {
			return err
		}
		if did {
			b.changed(closed, "")
		}
	case heals:
		if err := b.store.InstanceHealthy(ctx, b.instance); err != nil {
			return err
		}
		set(func() { b.told = false })
	default:
		return b.writeProbe(ctx, next, p, set)
	}
	return nil
}

// writeProbe does a step of a probe that writes to the database.
func (b *breaker) writeProbe(ctx context.Context, next step, p *probe, set func(change func())) error {
	now := time.Now()
	switch next {
	case extends:
		extended, err := b.store.ExtendProbe(ctx, b.instance, b.config.Lease)
		if err != nil {
			return err
		}
		set(func() {
			if p.lease = now.Add(b.config.Lease); !extended && !p.started { // another instance probes
				b.probe = nil
			}
		})
	case passes:
		if _, err := b.store.ExtendProbe(ctx, b.instance, 0); err != nil {
			return err
		}
		set(func() {
			if !p.started {
				b.probe = nil
			}
		})
	case failsProbe:
		if err := b.store.ProbeFailed(ctx, b.instance, p.wait); err != nil {
			return err
		}
		set(func() { b.probe = nil })
	default:
	}
	return nil
}

// changed is called by the instance that has opened or closed the breaker.
func (b *breaker) changed(change int, why string) {
	text := []string{
		opened: "Breaker has opened for all instances", closed: "Breaker has closed for all instances",
		openedAlone: "Breaker has opened for this instance", closedAlone: "Breaker has closed for this instance",
	}[change]
	fields := watermill.LogFields{"consumer": b.instance.Consumer, "topic": b.instance.Topic}
	if why != "" {
		fields["why"] = why
	}
	b.config.Logger.Info(text, fields)
	b.instruments.breaker.Add(1, change)
	if b.config.Breaker.OnChange == nil {
		return
	}
	select {
	case b.changes <- BreakerChange{
		Consumer: b.instance.Consumer, Topic: b.instance.Topic, Why: why,
		Open: change == opened || change == openedAlone, All: change == opened || change == closed,
	}:
	default:
		b.config.Logger.Error("Breaker.OnChange is too slow, and is not called for a change", fmt.Errorf("%d changes wait", maxChanges), fields)
	}
}

func (b *breaker) callOnChange() {
	for c := range b.changes {
		if err := chain.Run(func() error { b.config.Breaker.OnChange(c); return nil }); err != nil {
			b.config.Logger.Error("Breaker.OnChange panicked", err, watermill.LogFields{"consumer": c.Consumer, "topic": c.Topic})
		}
	}
}

func (b *breaker) giveBackAttempts(ctx context.Context) error {
	b.mu.Lock()
	group, charges, due := b.group, slices.Clone(b.charges), time.Time{}
	if row, _, _ := b.pauses.Row(); row != nil {
		due = row.Due
	} else if b.own != nil {
		due = b.own.until
	}
	b.mu.Unlock()
	if len(charges) == 0 {
		return nil
	}
	left, err := b.store.GiveBack(ctx, b.instance, group, charges, max(time.Until(due), 0))
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.giveBack--; b.giveBack <= 0 {
		left = nil
	}
	b.charges = slices.DeleteFunc(b.charges, func(c parkedrows.Charge) bool {
		return slices.Contains(charges, c) && !slices.Contains(left, c)
	})
	return nil
}

func (b *breaker) report(err error) {
	fields := watermill.LogFields{"consumer": b.instance.Consumer, "topic": b.instance.Topic}
	switch {
	case err != nil && !b.failing:
		b.failing = true
		b.config.Logger.Error("Breaker cannot read or write its row, retrying", err, fields)
	case err == nil && b.failing:
		b.failing = false
		b.config.Logger.Info("Breaker reads and writes its row again", fields)
	}
}
