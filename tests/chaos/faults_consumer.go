package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
)

// consumerFaults are what makes a consumer wait: an operator, its breaker, or its limit.
func consumerFaults() []fault {
	return []fault{
		{
			name: "consumer-paused", about: "an operator pauses a consumer, and processes are killed meanwhile", on: consuming,
			alone: true, strike: consumerPaused,
		},
		{
			name: "provider-down", about: "a service that handlers call is down, and processes are killed while the breaker is open", on: consuming,
			alone: true, writes: true, strike: providerDown,
		},
		{
			name: "consumer-limited", about: "a consumer has a limit while its processes come and go", on: consuming,
			alone: true, writes: true, strike: consumerLimited,
		},
	}
}

// untilDone repeats a call of an operator until it succeeds, because the database may be down.
func (s *strike) untilDone(ctx context.Context, what string, do func() error) error {
	return s.until(ctx, what, func() bool { return do() == nil })
}

func (s *strike) effectsOf(ctx context.Context, consumer string) int64 {
	return s.number(ctx, `SELECT COUNT(*) FROM effects WHERE consumer = $1`, consumer)
}

func consumerPaused(ctx context.Context, s *strike) (string, error) {
	messages, err := parked.New(s.db, operate.Config{})
	if err != nil {
		return "", err
	}
	act, name := operate.Act{Actor: "chaos", Why: "a fault"}, []string{ledger, notices}[s.IntN(2)]
	resume := func() error {
		_, err := messages.ResumeConsumer(ctx, act, name, "")
		return err
	}
	if err := s.untilDone(ctx, "the pause is committed", func() error {
		_, err := messages.PauseConsumer(ctx, act, name, "")
		return err
	}); err != nil {
		return "", err
	}
	defer func() { _ = resume() }()
	rest(ctx, time.Second+tooLong) // each process has seen the pause, and a slow handler has ended
	before := s.effectsOf(ctx, name)
	for n := range pauseKills {
		<-s.pick(consuming).signal(syscall.SIGKILL).gone
		id := fmt.Sprintf("during-pause-%d-%d", s.Uint64(), n)
		if err := s.write(ctx, event{id: id, kind: plain, to: name}, event{id: id + "-other", kind: plain, to: accounts}); err != nil {
			return "", err
		}
		if err := s.until(ctx, "a message of another consumer is applied", func() bool {
			return s.number(ctx, `SELECT COUNT(*) FROM effects WHERE message_id = $1`, id+"-other") == 1
		}); err != nil {
			return "", err
		}
	}
	if more := s.effectsOf(ctx, name) - before; more != 0 {
		s.escaped.Add(more)
	}
	if err := s.untilDone(ctx, "the resume is committed", resume); err != nil {
		return "", err
	}
	err = s.until(ctx, "messages are applied after the resume", func() bool { return s.effectsOf(ctx, name) >= before+pauseKills })
	return fmt.Sprintf("%d messages of %s were applied, and none during the pause", s.effectsOf(ctx, name)-before, name), err
}

func providerDown(ctx context.Context, s *strike) (string, error) {
	const opened = `SELECT COUNT(*) FROM once_audit WHERE action = 'breaker.opened'`
	before := s.number(ctx, opened)
	if err := s.exec(ctx, `INSERT INTO outage VALUES (true)`); err != nil {
		return "", err
	}
	defer func() { _ = s.exec(ctx, `DELETE FROM outage`) }()
	probes := func(n int) func() bool {
		return func() bool {
			return s.number(ctx, `SELECT COUNT(*) FROM once_consumer_pauses WHERE probes >= $1`, n) > 0
		}
	}
	if err := s.until(ctx, "the breaker is open", probes(0)); err != nil {
		return "", err
	}
	for n := range pauseKills {
		<-s.pick(consuming).signal(syscall.SIGKILL).gone
		if err := s.until(ctx, "probes fail", probes(n+1)); err != nil {
			return "", err
		}
	}
	if err := s.exec(ctx, `DELETE FROM outage`); err != nil {
		return "", err
	}
	err := s.until(ctx, "the breaker is closed", func() bool {
		return s.number(ctx, `SELECT COUNT(*) FROM once_consumer_pauses`) == 0
	})
	return fmt.Sprintf("the breaker opened %d times", s.number(ctx, opened)-before), err
}

func consumerLimited(ctx context.Context, s *strike) (string, error) {
	messages, err := parked.New(s.db, operate.Config{})
	if err != nil {
		return "", err
	}
	act, limit := operate.Act{Actor: "chaos", Why: "a fault"}, parked.Limit{PerSecond: 50, Burst: 10}
	set := func(limit parked.Limit) func() error {
		return func() error {
			_, err := messages.LimitConsumer(ctx, act, ledger, "", limit)
			return err
		}
	}
	if err := s.untilDone(ctx, "the limit is committed", set(limit)); err != nil {
		return "", err
	}
	defer func() { _ = set(parked.Limit{})() }()
	rest(ctx, time.Second+tooLong) // each process has seen the limit, and a slow handler has ended
	before, began := s.effectsOf(ctx, ledger), time.Now()
	for range pauseKills {
		<-s.pick(consuming).signal(syscall.SIGKILL).gone
		s.hold(ctx)
		s.pick(consuming).renew()
		s.hold(ctx)
	}
	var more int64
	if err := s.until(ctx, "messages are applied", func() bool {
		more = s.effectsOf(ctx, ledger) - before
		return more > 100
	}); err != nil {
		return "", err
	}
	took := time.Since(began)
	if most := int64(limit.PerSecond*took.Seconds()) + int64(limit.Burst); more > most {
		s.hurried.Add(more - most)
	}
	err = s.untilDone(ctx, "the limit is removed", set(parked.Limit{}))
	return fmt.Sprintf("%d messages in %v with a limit of %v per second", more, took.Round(time.Millisecond), limit.PerSecond), err
}
