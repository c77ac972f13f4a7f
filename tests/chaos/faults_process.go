package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
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

// pauseFaults are acts of an operator that let messages wait in the outbox.
func pauseFaults() []fault {
	return []fault{{
		name: "pauses", about: "an operator pauses a tenant or a topic, and forwarders are killed meanwhile", on: forwarding,
		alone: true, strike: pauses,
	}}
}

const (
	pausedCount = 20 // messages in the scope of a pause, each with a key
	pauseKills  = 2
)

// pauses lets an operator pause a tenant or a topic. It writes messages in the scope of
// the pause, messages of the same keys outside of this scope, and messages of other keys.
// The messages of the same keys must wait, too, because the order of keys is kept. Before
// the resume, only the messages of other keys may be sent, even by forwarders that start
// during the pause.
func pauses(ctx context.Context, s *strike) (string, error) {
	messages, err := outbox.New(s.db, operate.Config{})
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("paused-%d", s.Uint64())
	scope := outbox.Scope{Tenant: name}
	in := event{kind: plain, tenant: name}
	if s.IntN(2) == 0 {
		scope = outbox.Scope{Topic: notices}
		in = event{kind: plain, to: notices}
	}
	act := operate.Act{Actor: "chaos", Why: "a fault"}
	if err := s.until(ctx, "the pause is committed", func() bool { return messages.Pause(ctx, act, scope) == nil }); err != nil {
		return "", err
	}
	resumed := false
	resume := func() error {
		resumed = true
		return s.until(ctx, "the resume is committed", func() bool { return messages.Resume(ctx, act, scope) == nil })
	}
	defer func() {
		if !resumed {
			_ = resume()
		}
	}()

	var waiting []event
	for n := range pausedCount {
		first := in
		first.id, first.key = fmt.Sprintf("%s-%d.1", name, n), fmt.Sprintf("%s-%d", name, n)
		successor := event{id: first.key + ".2", kind: plain, key: first.key, number: 2}
		if in.tenant != "" { // the recorder sees only the ledger, so it cannot compare the order of two topics
			first.number = 1
		} else {
			successor.number = 1
		}
		waiting = append(waiting, first, successor)
	}
	if err := s.write(ctx, waiting...); err != nil {
		return "", err
	}
	for n := range pauseKills {
		<-s.pick(forwarding).signal(syscall.SIGKILL).gone
		other := event{id: fmt.Sprintf("%s-other-%d", name, n), kind: plain}
		if err := s.write(ctx, other); err != nil {
			return "", err
		}
		if err := s.until(ctx, "a message that is not paused is applied", func() bool {
			return s.number(ctx, `SELECT COUNT(*) FROM effects WHERE message_id = $1`, other.id) == 1
		}); err != nil {
			return "", err
		}
	}
	ids := idsOf(waiting)
	left := int64(-1)
	if err := s.until(ctx, "the outbox can be read", func() bool {
		left = s.number(ctx, `SELECT COUNT(*) FROM once_outbox WHERE message_id = ANY($1)`, pq.Array(ids))
		return left >= 0
	}); err != nil {
		return "", err
	}
	if sent := int64(len(ids)) - left; sent != 0 {
		s.escaped.Add(sent)
	}
	if err := resume(); err != nil {
		return "", err
	}
	if err := s.until(ctx, "all of them are applied after the resume", func() bool {
		return s.number(ctx, `SELECT COUNT(DISTINCT message_id) FROM effects WHERE message_id = ANY($1)`, pq.Array(ids)) == int64(len(ids))
	}); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d messages waited for %s", left, strings.SplitN(scope.String(), "-", 2)[0]), nil
}

func idsOf(events []event) []string {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.id
	}
	return ids
}

// pauses checks that no message was sent or applied while it was paused, and none in spite of a limit.
func (a *audit) pauses(context.Context) error {
	if n := a.escaped.Load(); n > 0 {
		a.wrongf("%d messages were sent while they were paused", n)
	}
	if n := a.hurried.Load(); n > 0 {
		a.wrongf("%d messages were applied in spite of a limit", n)
	}
	return nil
}

// blind hides the pauses from sessions with the application name "blind". A forwarder
// that is broken on purpose has this name, so it does not see any pause.
const blind = `
ALTER TABLE once_pauses RENAME TO once_all_pauses;
CREATE VIEW once_pauses AS SELECT * FROM once_all_pauses WHERE current_setting('application_name') <> 'blind';
GRANT ALL ON once_pauses TO ` + user + `;`
