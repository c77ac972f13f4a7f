package parked

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
)

// Act says who does something to a quarantined message, and why.
type Act struct {
	Actor string
	Why   string
}

// Validate refuses an act that nobody answers for.
func (a Act) Validate() error {
	if a.Actor == "" {
		return errors.New("Actor is empty")
	}
	return nil
}

// ErrUndecodable says that a message could not be decoded when it came, and
// would not be now.
var ErrUndecodable = errors.New("the message could not be decoded when it came: edit it")

// Replay makes quarantined rows due now, with fresh budgets. All of them or,
// if one is not in quarantine or cannot be decoded, none.
func (s *Store) Replay(ctx context.Context, act Act, ids []int64) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		return each(ids, func(id int64) error {
			var (
				consumer, messageID string
				raw                 bool
			)
			if err := tx.QueryRowContext(ctx, s.sql.replay, id).Scan(&consumer, &messageID, &raw); err != nil {
				return err
			}
			if raw {
				return ErrUndecodable
			}
			failpoint.Hit("parked/replay")
			return s.record(ctx, tx, act, "replay", id, consumer, messageID)
		})
	})
}

// Discard ends quarantined rows, and sees to it that a late copy does not run.
// All of them or none.
func (s *Store) Discard(ctx context.Context, act Act, ids []int64) error {
	return s.leaving(ctx, func(*sql.Tx) ([]int64, error) { return ids, nil }, func(tx *sql.Tx) error {
		return each(ids, func(id int64) error { return s.discard(ctx, tx, act, "discard", id) })
	})
}

// Last returns the highest ID of an entry in quarantine, or 0.
func (s *Store) Last(ctx context.Context) (id int64, err error) {
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, s.sql.last).Scan(&id) })
	return id, err
}

// DiscardSome does so with entries that match and whose ID is not above until,
// at most n of them, and returns how many those were and the ID of the last;
// with none, the ID 0.
func (s *Store) DiscardSome(ctx context.Context, act Act, f Filter, until int64, n int) (discarded int, last int64, err error) {
	where := s.where(f, Quarantined)
	query := s.dialect.SQL(`SELECT id FROM {parked} WHERE ` + where.String() + ` AND id <= ` + where.arg(until) +
		` ORDER BY id LIMIT ` + where.arg(n))
	var ids []int64
	err = s.leaving(ctx, func(tx *sql.Tx) (_ []int64, err error) {
		ids, err = selectIDs(ctx, tx, query, where.args)
		return ids, err
	}, func(tx *sql.Tx) error {
		discarded, last = 0, 0
		for _, id := range ids {
			last = id
			err := s.discard(ctx, tx, act, "discard", id)
			switch {
			case errors.Is(err, sql.ErrNoRows): // somebody else was faster
			case err != nil:
				return fmt.Errorf("message %d: %w", id, err)
			default:
				discarded++
			}
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	return discarded, last, nil
}

// ErrClaimed says that a handler is at a copy of the message that holds an
// ordering key. Nobody waits for that: what comes behind would, too.
var ErrClaimed = errors.New("a copy of the message is being handled: try again when that has ended")

const lockTimeout = "55P03" // lock_not_available

// leaving runs work, by which the rows that which names are heads of their
// ordering keys no longer.
func (s *Store) leaving(ctx context.Context, which func(tx *sql.Tx) ([]int64, error), work func(tx *sql.Tx) error) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		ids, err := which(tx)
		if err != nil {
			return err
		}
		keys, err := s.keysOf(ctx, tx, ids)
		if err != nil {
			return err
		}
		if err := s.lockKeys(ctx, tx, keys); err != nil {
			return err
		}
		if len(keys) > 0 && s.sql.briefly != "" { // nothing of them is stored meanwhile
			if _, err := tx.ExecContext(ctx, s.sql.briefly); err != nil {
				return err
			}
		}
		if err := work(tx); err != nil {
			return err
		}
		return s.promote(ctx, tx, keys)
	})
}

func selectIDs(ctx context.Context, tx *sql.Tx, query string, args []any) (ids []int64, err error) {
	err = eachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var id int64
		err := scan(&id)
		ids = append(ids, id)
		return err
	}, query, args...)
	return ids, err
}

// discard ends one row and leaves a tombstone in the inbox.
func (s *Store) discard(ctx context.Context, tx *sql.Tx, act Act, action string, id int64) error {
	var (
		consumer, messageID string
		envelope            []byte
	)
	if err := tx.QueryRowContext(ctx, s.sql.discard, id).Scan(&consumer, &messageID, &envelope); err != nil {
		return err
	}
	failpoint.Hit("parked/discard")
	// An id that had to be cleaned is refused by the inbox anyway.
	if msg, err := Decode(envelope); err == nil && msg.UUID != "" && msg.UUID == messageID {
		digest := sha256.Sum256(msg.Payload)
		_, err := tx.ExecContext(ctx, s.sql.tombstone, messageID, consumer, digest[:])
		if dialect.State(err) == lockTimeout {
			return fmt.Errorf("%w: %w", ErrClaimed, err)
		}
		if err != nil {
			return err
		}
		failpoint.Hit("parked/tombstone")
	}
	return s.record(ctx, tx, act, action, id, consumer, messageID)
}

func each(ids []int64, one func(id int64) error) error {
	for _, id := range ids {
		err := one(id)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w in quarantine: %d", ErrNotFound, id)
		}
		if err != nil {
			return fmt.Errorf("message %d: %w", id, err)
		}
	}
	return nil
}

func (s *Store) record(ctx context.Context, tx *sql.Tx, act Act, action string, id int64, consumer, messageID string) error {
	_, err := tx.ExecContext(ctx, s.sql.audit, Clean(act.Actor, maxName), action,
		"parked:"+strconv.FormatInt(id, 10), consumer, messageID, Clean(act.Why, maxError))
	failpoint.Hit("parked/audited")
	return err
}

// Count counts quarantined rows, up to most.
func (s *Store) Count(ctx context.Context, most int) (n int64, err error) {
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.count, most).Scan(&n)
	})
	if err != nil {
		err = fmt.Errorf("count quarantined messages: %w", err)
	}
	return n, err
}
