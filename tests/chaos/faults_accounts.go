package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
)

// accountFaults are faults of the consumer that compares versions and business keys.
func accountFaults() []fault {
	return []fault{
		{
			name: "late-versions", about: "versions of accounts arrive in any order, and one of each fails at first", on: onHandlers,
			strike: lateVersions,
		},
		{
			name: "late-after-window", about: "a version arrives when a higher one has been applied without it: it is quarantined", on: onHandlers,
			strike: lateAfterWindow,
		},
		{
			name: "same-request", about: "a message is replayed long after another message with its business key", on: onHandlers,
			strike: sameRequest,
		},
	}
}

const (
	accountCount = 5
	versionCount = 8
)

// lateVersions writes the versions of some accounts in random order. The consumer must apply all of
// them, and must apply the versions of each account in ascending order. The audit checks this.
func lateVersions(ctx context.Context, s *strike) (string, error) {
	const name = "once.sequence.handled/held"
	held := s.growing(func() int64 { return s.count(consuming, name) })
	var events []event
	var ids []string
	for range accountCount {
		account := fmt.Sprintf("account-%d", s.Uint64())
		fails := 1 + s.Int64N(versionCount-1)
		for version := int64(1); version <= versionCount; version++ {
			e := event{id: fmt.Sprintf("%s.%d", account, version), kind: plain, account: account, number: version}
			if version == fails {
				e.kind = stumbling
			}
			events, ids = append(events, e), append(ids, e.id)
		}
	}
	s.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	if err := s.write(ctx, events...); err != nil {
		return "", err
	}
	err := s.until(ctx, "all versions are applied", func() bool {
		return s.number(ctx, `SELECT COUNT(DISTINCT message_id) FROM effects WHERE message_id = ANY($1)`, pq.Array(ids)) == int64(len(ids))
	})
	if err != nil {
		return "", err
	}
	return s.seen(ctx, name, held, nil)
}

// overtaken is the prefix of the accounts whose versions are applied out of order on
// purpose.
const overtaken = "overtaken-"

// lateAfterWindow first writes versions 1 and 3 of an account. Version 3 is quarantined
// at the end of its window, because version 2 is missing. An operator replays version 3,
// so it is applied. Then version 2 is written. It must not be lost: it is quarantined,
// and a replay applies it.
func lateAfterWindow(ctx context.Context, s *strike) (string, error) {
	account := fmt.Sprintf("%s%d", overtaken, s.Uint64())
	version := func(n int64) event {
		return event{id: fmt.Sprintf("%s.%d", account, n), kind: plain, account: account, number: n}
	}
	store, err := quarantine.New(s.db, operate.Config{})
	if err != nil {
		return "", err
	}
	first, missing, next := version(1), version(2), version(3)
	quarantined := func(e event) bool {
		return s.number(ctx, `SELECT COUNT(*) FROM once_parked WHERE message_id = $1 AND state = 'quarantined' AND reason = $2`,
			e.id, poison.ReasonGap) == 1
	}
	applied := func(e event) bool {
		return s.number(ctx, `SELECT COUNT(*) FROM effects WHERE message_id = $1`, e.id) == 1
	}
	// ended returns a function for until. The returned function first ends the window of a
	// held message, and then checks the condition.
	ended := func(e event, condition func(event) bool) func() bool {
		return func() bool {
			_ = s.exec(ctx, `
				UPDATE once_parked SET early_since = now() - interval '1 day', due_at = now()
				WHERE message_id = $1 AND state = 'waiting' AND early_since > now() - interval '1 hour' AND token IS NULL`, e.id)
			return condition(e)
		}
	}
	if err := s.write(ctx, first, next); err != nil {
		return "", err
	}
	if err := s.until(ctx, "the first version is applied", func() bool { return applied(first) }); err != nil {
		return "", err
	}
	if err := s.until(ctx, "the next version is given up", ended(next, quarantined)); err != nil {
		return "", err
	}
	replayed := make(chan error, 1)
	go func() { replayed <- s.replayed(ctx, store, operate.Filter{MessageID: next.id}) }() // the replayed version waits for one more window
	err = s.until(ctx, "the replayed version is applied", ended(next, applied))
	if err := errors.Join(err, <-replayed); err != nil {
		return "", err
	}
	if err := s.write(ctx, missing); err != nil {
		return "", err
	}
	ignored := func() bool {
		return s.number(ctx, `SELECT COUNT(*) FROM once_inbox WHERE message_id = $1`, missing.id) == 1
	}
	if err := s.until(ctx, "the late version is in quarantine", func() bool { return quarantined(missing) || ignored() }); err != nil {
		return "", err
	}
	if !quarantined(missing) {
		return "the late version was ignored", nil // the audit reports it as lost
	}
	if err := s.replayed(ctx, store, operate.Filter{MessageID: missing.id}); err != nil {
		return "", err
	}
	if err := s.until(ctx, "the late version is applied", func() bool { return applied(missing) }); err != nil {
		return "", err
	}
	return "version 2 was quarantined, and applied after version 3", nil
}

// sameRequest quarantines one message, and applies another message with the same business key. When
// the sweep has removed the id of the applied message, sameRequest replays the quarantined one. The
// replay must have no effect.
func sameRequest(ctx context.Context, s *strike) (string, error) {
	request := fmt.Sprintf("request-%d", s.Uint64())
	failing := event{id: request + "-failing", kind: hopeless, request: request}
	applied := event{id: request + "-applied", kind: plain, request: request}
	if err := s.exec(ctx, `DELETE FROM mended WHERE kind = $1`, hopeless); err != nil {
		return "", err
	}
	copied, err := rabbit.Marshaler{}.Marshal(failing.message())
	if err != nil {
		return "", err
	}
	if err := s.publish(ctx, accounts, copied); err != nil {
		return "", err
	}
	find := func(what, query string, args ...any) error {
		return s.until(ctx, what, func() bool { return s.number(ctx, `SELECT COUNT(*) FROM `+query, args...) == 1 })
	}
	if err := find("it is in quarantine", `once_parked WHERE message_id = $1 AND state = 'quarantined'`, failing.id); err != nil {
		return "", err
	}
	if err := s.write(ctx, applied); err != nil {
		return "", err
	}
	if err := find("the other is applied", `effects WHERE message_id = $1`, applied.id); err != nil {
		return "", err
	}
	key := "key:" + request
	if err := errors.Join(
		s.exec(ctx, `UPDATE once_parked SET created_at = now() - interval '1 year' WHERE message_id = $1`, failing.id),
		s.exec(ctx, `UPDATE once_inbox SET processed_at = now() - interval '1 year' WHERE message_id IN ($1, $2)`, applied.id, key),
	); err != nil {
		return "", err
	}
	if err := s.until(ctx, "its id is swept", func() bool {
		return s.number(ctx, `SELECT COUNT(*) FROM once_inbox WHERE message_id = $1`, applied.id) == 0
	}); err != nil {
		return "", err
	}
	if n := s.number(ctx, `SELECT COUNT(*) FROM once_inbox WHERE message_id = $1`, key); n == 0 {
		return "", errors.New("the sweep removed the key of a message in quarantine")
	}
	// The broker may still have duplicates of the applied message, so the inbox must keep its
	// business key.
	if err := errors.Join(
		s.exec(ctx, `UPDATE once_inbox SET processed_at = now() WHERE message_id = $1`, key),
		s.exec(ctx, `INSERT INTO mended VALUES ($1) ON CONFLICT DO NOTHING`, hopeless),
	); err != nil {
		return "", err
	}
	store, err := quarantine.New(s.db, operate.Config{})
	if err != nil {
		return "", err
	}
	if err := s.replayed(ctx, store, operate.Filter{MessageID: failing.id}); err != nil {
		return "", err
	}
	if err := find("the replay is resolved", `once_parked WHERE message_id = $1 AND state = 'resolved'`, failing.id); err != nil {
		return "", err
	}
	if n := s.number(ctx, `SELECT COUNT(*) FROM effects WHERE message_id = $1`, failing.id); n != 0 {
		return "", fmt.Errorf("%s was applied twice", request)
	}
	return "the replay had no effect", nil
}

// write commits events in a transaction of the test process, not of a writer. If the
// transaction fails, write tries again. It returns when the transaction is committed, or
// when the result of a commit is unknown.
func (s *strike) write(ctx context.Context, events ...event) error {
	var failure error
	err := s.until(ctx, "events are committed", func() bool {
		failure = outbox.InTx(ctx, s.db, func(tx *sql.Tx, to message.Publisher) error {
			for _, e := range events {
				if err := put(ctx, tx, to, e); err != nil {
					return err
				}
			}
			return nil
		})
		return failure == nil || errors.Is(failure, outbox.ErrCommitUnknown)
	})
	return errors.Join(err, failure)
}

func put(ctx context.Context, tx *sql.Tx, to message.Publisher, e event) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO business (message_id, number, tx, topic, kind, ordering_key) VALUES ($1, $2, 'ours', $3, $4, $5)`,
		e.id, e.number, e.topic(), e.kind, e.key)
	return errors.Join(err, to.Publish(e.topic(), e.message()))
}
