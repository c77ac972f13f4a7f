package parkedrows

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
)

// ActorBreaker is the actor of a pause that a breaker has begun.
const ActorBreaker = "breaker"

// Instance is a subscription of a consumer, for its breaker.
type Instance struct{ Consumer, Topic, Owner string }

// name returns the values of the columns topic and consumer.
func (i Instance) name() []any { return []any{Clean(i.Topic, MaxName), Clean(i.Consumer, MaxName)} }

func (i Instance) all(more ...any) []any {
	return append(append(i.name(), Clean(i.Owner, MaxName)), more...)
}

// breakerQueries are the statements of breakers. The first parameters of each statement
// are the topic, the consumer and, except for lock, open and delete, the owner.
type breakerQueries struct {
	lock    string // serializes the openings of a consumer's breaker
	fail    string
	healthy string
	others  string
	open    string
	claim   string
	extend  string
	reopen  string
	remove  string
	healed  string
	audit   string
	back    string
}

func newBreakerQueries(d dialect.Dialect) breakerQueries {
	of := ` WHERE topic = $1 AND consumer = $2`
	return breakerQueries{
		lock: d.SQL(`SELECT 1 FROM {consumers}` + of + ` {for_update}`),

		fail: d.SQL(`
			UPDATE {consumer_instances} SET failing_since = COALESCE(failing_since, {now})` + of + ` AND owner = $3`),

		healthy: d.SQL(`UPDATE {consumer_instances} SET failing_since = NULL` + of + ` AND owner = $3 AND failing_since IS NOT NULL`),

		others: d.SQL(`
			SELECT COUNT(*), COUNT(failing_since) FROM {consumer_instances}` + of + ` AND owner <> $3 AND seen_at >= {after $4}`),

		open: d.SQL(`
			INSERT INTO {consumer_pauses} (topic, consumer, actor, why, probe_at, fingerprint)
			VALUES ($1, $2, '` + ActorBreaker + `', $3, {after $4}, $5)
			ON CONFLICT (topic, consumer) DO NOTHING`),

		claim: d.SQL(`
			UPDATE {consumer_pauses} SET prober = $3, probe_at = {after $4}` + of + ` AND probe_at <= {now}`),

		extend: d.SQL(`
			UPDATE {consumer_pauses} SET probe_at = {after $4}` + of + ` AND prober = $3 AND probe_at IS NOT NULL`),

		reopen: d.SQL(`
			UPDATE {consumer_pauses} SET probe_at = {after $4}, probes = probes + 1` + of + ` AND prober = $3 AND probe_at IS NOT NULL`),

		remove: d.SQL(`DELETE FROM {consumer_pauses}` + of + ` AND probe_at IS NOT NULL`),

		healed: d.SQL(`UPDATE {consumer_instances} SET failing_since = NULL` + of + ` AND failing_since IS NOT NULL`),

		audit: d.SQL(`
			INSERT INTO {audit} (actor, action, subject, consumer, why) VALUES ('` + ActorBreaker + `', $1, $2, $3, $4)`),

		back: d.SQL(`
			UPDATE {parked}
			SET attempts = CASE WHEN attempts > $4 THEN attempts - $4 ELSE 0 END,
			    rounds = CASE WHEN rounds > $5 THEN rounds - $5 ELSE 0 END,
			    due_at = CASE WHEN due_at > {after $7} THEN {after $7} ELSE due_at END
			WHERE consumer = $2 AND topic = $1 AND message_id = $3 AND message_id <> ''
			  AND state = 'waiting' AND token IS NULL AND fingerprint = $6`),
	}
}

// Group returns the failure group of a failed call, and the type of its error.
func Group(consumer string, f Failure) (group, errType string) {
	_, errType, group = f.columns(consumer)
	return group, errType
}

// BreakerOpened records that calls fail in an instance. If they fail in more than half of
// the running instances, it opens the breaker for all instances, and returns true. The
// first probe is due after wait.
func (s *Store) BreakerOpened(ctx context.Context, i Instance, group, why string, wait time.Duration) (opened bool, err error) {
	err = s.changeBreaker(ctx, i, func(tx *sql.Tx) error {
		opened = false
		if _, err := tx.ExecContext(ctx, s.sql.breaker.fail, i.all()...); err != nil {
			return err
		}
		failpoint.Hit("parked/breaker-failing")
		var others, failing int
		err := tx.QueryRowContext(ctx, s.sql.breaker.others, i.all(-AbsentAfter.Milliseconds())...).Scan(&others, &failing)
		if err != nil || 2*(failing+1) <= others+1 {
			return err
		}
		n, err := dialect.Affected(tx.ExecContext(ctx, s.sql.breaker.open,
			append(i.name(), Clean(why, MaxError), wait.Milliseconds(), group)...))
		if err != nil || n == 0 {
			return err
		}
		opened = true
		failpoint.Hit("parked/breaker-opened")
		return s.auditBreaker(ctx, tx, i, "breaker.opened", why)
	})
	failpoint.Hit("parked/breaker-open")
	return opened, err
}

// BreakerClosed closes the breaker for all instances. It returns false if it was closed
// already, or if an operator holds it open.
func (s *Store) BreakerClosed(ctx context.Context, i Instance, why string) (closed bool, err error) {
	err = s.changeBreaker(ctx, i, func(tx *sql.Tx) error {
		n, err := dialect.Affected(tx.ExecContext(ctx, s.sql.breaker.remove, i.name()...))
		closed = n > 0
		if err != nil || !closed {
			return err
		}
		failpoint.Hit("parked/breaker-closed")
		if _, err := tx.ExecContext(ctx, s.sql.breaker.healed, i.name()...); err != nil {
			return err
		}
		return s.auditBreaker(ctx, tx, i, "breaker.closed", why)
	})
	failpoint.Hit("parked/breaker-close")
	return closed, err
}

// changeBreaker locks the row of the consumer first. Otherwise two instances that begin
// to fail at the same time would not see each other.
func (s *Store) changeBreaker(ctx context.Context, i Instance, change func(tx *sql.Tx) error) error {
	err := s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, s.sql.breaker.lock, i.name()...); err != nil {
			return err
		}
		return change(tx)
	})
	if err != nil {
		return fmt.Errorf("change the breaker of consumer %q and topic %q: %w", i.Consumer, i.Topic, err)
	}
	return nil
}

func (s *Store) auditBreaker(ctx context.Context, tx *sql.Tx, i Instance, action, why string) error {
	_, err := tx.ExecContext(ctx, s.sql.breaker.audit,
		action, "topic:"+Clean(i.Topic, MaxName), Clean(i.Consumer, MaxName), Clean(why, MaxError))
	return err
}

// InstanceHealthy records that calls succeed again in an instance.
func (s *Store) InstanceHealthy(ctx context.Context, i Instance) error {
	_, err := s.updateBreaker(ctx, s.sql.breaker.healthy, i.all()...)
	return err
}

// ClaimProbe reports whether the instance may try one message now. No other instance may
// do so before the end of the lease.
func (s *Store) ClaimProbe(ctx context.Context, i Instance, lease time.Duration) (claimed bool, err error) {
	claimed, err = s.updateBreaker(ctx, s.sql.breaker.claim, i.all(lease.Milliseconds())...)
	failpoint.Hit("parked/probe-claimed")
	return claimed, err
}

// ExtendProbe renews the lease of a probe, or ends it if lease is 0. It returns false if
// the instance does not probe any more.
func (s *Store) ExtendProbe(ctx context.Context, i Instance, lease time.Duration) (extended bool, err error) {
	return s.updateBreaker(ctx, s.sql.breaker.extend, i.all(lease.Milliseconds())...)
}

// ProbeFailed ends a probe. The next one is due after wait.
func (s *Store) ProbeFailed(ctx context.Context, i Instance, wait time.Duration) error {
	_, err := s.updateBreaker(ctx, s.sql.breaker.reopen, i.all(wait.Milliseconds())...)
	failpoint.Hit("parked/probe-failed")
	return err
}

func (s *Store) updateBreaker(ctx context.Context, query string, args ...any) (changed bool, err error) {
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		n, err := dialect.Affected(tx.ExecContext(ctx, query, args...))
		changed = n > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("update a breaker: %w", err)
	}
	return changed, nil
}

// Charge is what the failed calls of a message have cost it.
type Charge struct {
	MessageID        string
	Attempts, Rounds int
}

// GiveBack gives parked messages the attempts of failed calls back, and makes them due after the
// time wait, unless they are due earlier. It skips messages that are claimed, or have failed for
// another reason since, and returns them in left.
func (s *Store) GiveBack(
	ctx context.Context, i Instance, group string, charges []Charge, wait time.Duration,
) (left []Charge, err error) {
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		left = nil
		for _, c := range charges {
			n, err := dialect.Affected(tx.ExecContext(ctx, s.sql.breaker.back,
				append(i.name(), Clean(c.MessageID, MaxName), c.Attempts, c.Rounds, group, wait.Milliseconds())...))
			if err != nil {
				return err
			}
			if n == 0 {
				left = append(left, c)
			}
		}
		failpoint.Hit("parked/given-back")
		return nil
	})
	if err != nil {
		return charges, fmt.Errorf("give attempts back: %w", err)
	}
	return left, nil
}
