package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

func processFaults() []fault {
	var all []fault
	for _, role := range []string{writing, forwarding, consuming} {
		all = append(all,
			fault{
				name: role + "-kill", about: "SIGKILL of a " + role, on: role,
				strike: func(ctx context.Context, s *strike) (string, error) { return s.kill(ctx, role) },
			},
			fault{
				name: role + "-freeze", about: "SIGSTOP of a " + role + ", longer than its lease, then SIGCONT", on: role,
				strike: func(ctx context.Context, s *strike) (string, error) { return s.freeze(ctx, role) },
			},
			fault{
				name: role + "-restart", about: "a " + role + " ends in good order and begins again", on: role,
				strike: func(ctx context.Context, s *strike) (string, error) { return s.renew(ctx, role) },
			})
	}
	return append(all, fault{
		name: "old-and-new", about: "one process of each role is of an earlier release for a while: see -old", on: "releases", writes: true,
		strike: oldAndNew,
	}, fault{
		name: "pool-hogged", about: "a consumer's handlers have to wait for a connection of its own pool", on: consuming,
		strike: func(ctx context.Context, s *strike) (string, error) {
			waited := s.growing(func() int64 { return s.count(consuming, "waited") })
			const hogs = 3 * time.Second
			var told time.Time
			err := s.until(ctx, "somebody waited for a connection", func() bool {
				if time.Since(told) > hogs { // the database may have been down
					s.tell(consuming, order{Do: doHog, For: hogs})
					told = time.Now()
				}
				return waited() > 0
			})
			return fmt.Sprintf("%d waits for a connection", waited()), err
		},
	})
}

// oldAndNew simulates a deployment that is half complete, and is rolled back: one
// process of each role runs the earlier release for some time.
func oldAndNew(ctx context.Context, s *strike) (string, error) {
	if s.old == "" {
		return "", fmt.Errorf("%w: no binary of an earlier release, see -old", errUnavailable)
	}
	work := []struct{ role, did string }{
		{writing, "messages"}, {forwarding, "once.forwarder.published/confirmed"}, {consuming, "once.dedup.handled/applied"},
	}
	proof, errs := "the earlier release", []error(nil)
	for _, w := range work {
		m := s.pick(w.role)
		count := m.age(true)
		defer func() { m.age(false) }()
		errs = append(errs, s.until(ctx, m.base+" of the earlier release counted "+w.did, func() bool { return count(w.did) > 100 }))
		proof += fmt.Sprintf(", %s: %d %s", m.base, count(w.did), w.did)
	}
	return proof, errors.Join(errs...)
}

func (s *strike) kill(ctx context.Context, role string) (string, error) {
	m := s.pick(role)
	killed := s.growing(func() int64 { return m.exited(-int(syscall.SIGKILL)) })
	m.signal(syscall.SIGKILL)
	err := s.until(ctx, "the process is gone", func() bool { return killed() > 0 })
	return m.base + " was killed", err
}

func (s *strike) freeze(ctx context.Context, role string) (string, error) {
	m := s.pick(role)
	p := m.signal(syscall.SIGSTOP)
	defer func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }()
	var longest time.Duration
	err := s.until(ctx, "the process is silent for longer than a lease", func() bool {
		longest = max(longest, m.silence())
		return longest > max(forwarderLease, consumerLease)+time.Second
	})
	return fmt.Sprintf("%s was silent for %v", m.base, longest.Round(time.Millisecond)), err
}

func (s *strike) renew(ctx context.Context, role string) (string, error) {
	m := s.pick(role)
	ended := s.growing(func() int64 { return m.exited(0) })
	began := time.Now()
	m.renew()
	err := s.until(ctx, "the process ended with status 0", func() bool { return ended() > 0 })
	return fmt.Sprintf("%s ended within %v", m.base, time.Since(began).Round(time.Millisecond)), err
}
