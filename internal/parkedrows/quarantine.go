package parkedrows

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
)

// Recorder is called with the id of the row in the transaction that quarantines it, and again if
// the transaction is repeated. It returns nil, or a function to call after the commit.
type Recorder func(ctx context.Context, tx *sql.Tx, id int64) (committed func(), err error)

// Quarantine stores a message in quarantine and returns the id of its row. If d has a
// claim, Quarantine ends the claim. Otherwise the message came from the transport, and
// Quarantine stores it. If a row of the same message waits for another attempt,
// Quarantine uses that row. It returns 0 without an error in three cases: the message
// was resolved or discarded before, its row is held, or its row is claimed. A held row
// is handled later. For a claimed row, the process with the claim decides what happens
// to the message. record may be nil.
func (s *Store) Quarantine(ctx context.Context, d *Delivery, msg *message.Message, f Failure, record Recorder) (int64, error) {
	if d.Claim != nil {
		return s.quarantineClaim(ctx, d.Consumer, d.Claim, f, record)
	}
	text, errType, group := f.columns(d.Consumer)
	id, err := s.quarantine(ctx, nil, record, s.checkStored, s.sql.insertQuarantined, append([]any{
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
	check := func(ctx context.Context, tx *sql.Tx, _ []any) error {
		stay, err := s.stay(ctx, tx, nil, []*Claim{c})
		if err == nil && len(stay) > 0 {
			err = s.unsettled(1, c.ID)
		}
		return err
	}
	id, err := s.quarantine(ctx, keys, record, check, s.sql.quarantineClaim,
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

// quarantine runs a statement that quarantines one row, and returns the id of the row. The next
// held rows of keys become heads. If the statement changes no row, check returns an error if it had
// to.
func (s *Store) quarantine(
	ctx context.Context, keys []Key, record Recorder, check func(ctx context.Context, tx *sql.Tx, values []any) error,
	query string, args ...any,
) (id int64, err error) {
	var committed func()
	err = withASCIIFallback(func(encode encoder) error {
		return s.changeKeys(ctx, keys, func(tx *sql.Tx) error {
			committed = nil
			values := encode(args...)
			err := tx.QueryRowContext(ctx, query, values...).Scan(&id)
			if errors.Is(err, sql.ErrNoRows) {
				err = cmp.Or(check(ctx, tx, values), err)
			}
			if err != nil {
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

// Tombstone adds the message of a row to the inbox of its consumer, so that the handler is not
// called for a copy. It returns false if the inbox contains the id already. If a transaction is
// handling a copy, it waits for its end. It writes nothing if the envelope is damaged, or if the
// row has not stored the original id unchanged: the inbox refuses such an id anyway.
func (s *Store) Tombstone(ctx context.Context, tx *sql.Tx, consumer, messageID string, envelope []byte) (entered bool, err error) {
	msg, err := Decode(envelope)
	if err != nil || msg.UUID == "" || msg.UUID != messageID {
		return true, nil //nolint:nilerr // a damaged row can be discarded too
	}
	digest := sha256.Sum256(msg.Payload)
	result, err := tx.ExecContext(ctx, s.sql.tombstone, messageID, consumer, digest[:])
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// Handled reports whether the inbox contains the message of this row. It waits for the end of a
// transaction that is handling the message.
func (s *Store) Handled(ctx context.Context, tx *sql.Tx, id int64) (handled bool, err error) {
	result, err := tx.ExecContext(ctx, s.sql.enter, id)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, err
	}
	if n == 0 {
		err := tx.QueryRowContext(ctx, s.sql.entered, id).Scan(&handled)
		if err == nil && !handled {
			err = s.dialect.Unchanged("inbox", "a row was not inserted")
		}
		return handled, err
	}
	n, err = dialect.Affected(tx.ExecContext(ctx, s.sql.leave, id))
	if err == nil && n == 0 { // the handler would not be called, because the message seems to be handled
		err = s.dialect.Unchanged("inbox", "a row was not deleted")
	}
	return false, err
}
