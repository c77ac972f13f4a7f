package parked

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
)

// Act says who does something to a quarantined message, and why.
type Act struct {
	Actor string
	Why   string
}

// Replay makes quarantined rows due now, with fresh budgets. All of them or,
// if one is not in quarantine, none.
func (s *Store) Replay(ctx context.Context, act Act, ids []int64) error {
	return s.operate(ctx, ids, func(tx *sql.Tx, id int64) error {
		var consumer, messageID string
		if err := tx.QueryRowContext(ctx, s.sql.replay, id).Scan(&consumer, &messageID); err != nil {
			return err
		}
		return s.record(ctx, tx, act, "replay", id, consumer, messageID)
	})
}

// Discard ends quarantined rows, and sees to it that a late copy does not run.
// All of them or none.
func (s *Store) Discard(ctx context.Context, act Act, ids []int64) error {
	return s.operate(ctx, ids, func(tx *sql.Tx, id int64) error {
		var (
			consumer, messageID string
			envelope            []byte
		)
		if err := tx.QueryRowContext(ctx, s.sql.discard, id).Scan(&consumer, &messageID, &envelope); err != nil {
			return err
		}
		// An id that had to be cleaned is refused by the inbox anyway.
		if msg, err := Decode(envelope); err == nil && msg.UUID != "" && msg.UUID == messageID {
			digest := sha256.Sum256(msg.Payload)
			if _, err := tx.ExecContext(ctx, s.sql.tombstone, messageID, consumer, digest[:]); err != nil {
				return err
			}
		}
		return s.record(ctx, tx, act, "discard", id, consumer, messageID)
	})
}

func (s *Store) operate(ctx context.Context, ids []int64, one func(tx *sql.Tx, id int64) error) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		for _, id := range ids {
			err := one(tx, id)
			if errors.Is(err, sql.ErrNoRows) {
				return fmt.Errorf("%w in quarantine: %d", ErrNotFound, id)
			}
			if err != nil {
				return fmt.Errorf("message %d: %w", id, err)
			}
		}
		return nil
	})
}

func (s *Store) record(ctx context.Context, tx *sql.Tx, act Act, action string, id int64, consumer, messageID string) error {
	_, err := tx.ExecContext(ctx, s.sql.audit, Clean(act.Actor, maxName), action,
		"parked:"+strconv.FormatInt(id, 10), consumer, messageID, Clean(act.Why, maxError))
	return err
}

// Validate refuses an act that nobody answers for, or on nothing.
func (a Act) Validate(ids []int64) error {
	var errs []error
	if a.Actor == "" {
		errs = append(errs, errors.New("Actor is empty"))
	}
	if len(ids) == 0 {
		errs = append(errs, errors.New("no IDs"))
	}
	return errors.Join(errs...)
}
