package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/lib/pq"

	"github.com/watermill-once/once/pending"
)

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
	messages, err := pending.New(s.db, pending.Config{})
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("paused-%d", s.Uint64())
	scope := pending.Scope{Tenant: name}
	in := event{kind: plain, tenant: name}
	if s.IntN(2) == 0 {
		scope = pending.Scope{Topic: notices}
		in = event{kind: plain, to: notices}
	}
	act := pending.Act{Actor: "chaos", Why: "a fault"}
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

// pauses checks that no message was sent while it was paused.
func (a *audit) pauses(context.Context) error {
	if n := a.escaped.Load(); n > 0 {
		a.wrongf("%d messages were sent while they were paused", n)
	}
	return nil
}

// blind creates an empty copy of the table of pauses. A forwarder that is broken on
// purpose reads this copy instead of the real table, so it does not see any pause.
const blind = `
CREATE SCHEMA blind;
CREATE TABLE blind.once_pauses (LIKE public.once_pauses INCLUDING ALL);
GRANT USAGE ON SCHEMA blind TO ` + user + `;
GRANT SELECT ON blind.once_pauses TO ` + user + `;`
