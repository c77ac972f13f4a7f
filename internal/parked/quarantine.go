package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// Recorder is called in the transaction that quarantines a row, with the id of the row.
// It is called again if the transaction is repeated. It returns nil, or a function to
// call after the commit.
type Recorder func(ctx context.Context, tx *sql.Tx, id int64) (committed func(), err error)

// Quarantine stores a message in quarantine and returns the id of its row. If d has a
// claim, Quarantine ends the claim. Otherwise the message came from the transport, and
// Quarantine stores it. If a row of the same message waits for another attempt,
// Quarantine uses that row. It returns 0 without an error in three cases: the message
// was resolved or discarded before, its row is held, or its row is claimed. A held row
// is handled later. For a claimed row, the process with the claim decides what happens
// to the message. The parameter record may be nil.
func (s *Store) Quarantine(ctx context.Context, d *Delivery, msg *message.Message, f Failure, record Recorder) (int64, error) {
	if d.Claim != nil {
		return s.quarantineClaim(ctx, d.Consumer, d.Claim, f, record)
	}
	text, errType, group := f.columns(d.Consumer)
	id, err := s.quarantine(ctx, nil, record, s.sql.insertQuarantined, append([]any{
		Clean(d.Consumer, MaxName), Clean(d.Topic, MaxName), Clean(msg.UUID, MaxName), TenantOf(msg),
		Digest(msg), Encode(msg), min(f.Attempts, MaxCount), f.Reason, text, errType, group, f.stack(),
	}, LabelsOf(msg)...)...)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("quarantine message: %w", err)
	}
	return id, nil
}

func (s *Store) quarantineClaim(ctx context.Context, consumer string, c *Claim, f Failure, record Recorder) (int64, error) {
	text, errType, group := f.columns(consumer)
	staysHead := c.Order == BlockWhileQuarantined
	var keys []Key
	if !staysHead {
		keys = c.keys()
	}
	id, err := s.quarantine(ctx, keys, record, s.sql.quarantineClaim,
		c.ID, c.Token, min(f.Attempts, MaxCount), f.Reason, text, errType, group, f.stack(), staysHead)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		c.settled.Store(true)
		return 0, fmt.Errorf("%w: row %d", ErrClaimLost, c.ID)
	case err != nil:
		return 0, fmt.Errorf("settle parked message %d: %w", c.ID, err)
	}
	c.settled.Store(true)
	return id, nil
}

// quarantine runs a statement that quarantines one row, and returns the id of the row.
// If the row stops being the head of an ordering key, the parameter keys must contain
// this key. The next held row of the key then becomes the head.
func (s *Store) quarantine(ctx context.Context, keys []Key, record Recorder, query string, args ...any) (id int64, err error) {
	var committed func()
	err = withASCIIFallback(func(encode encoder) error {
		return s.changeKeys(ctx, keys, func(tx *sql.Tx) error {
			committed = nil
			if err := tx.QueryRowContext(ctx, query, encode(args...)...).Scan(&id); err != nil {
				return err
			}
			failpoint.Hit("parked/quarantined")
			if record == nil {
				return nil
			}
			committed, err = record(ctx, tx, id)
			return err
		})
	})
	if err == nil && committed != nil {
		committed()
	}
	return id, err
}
