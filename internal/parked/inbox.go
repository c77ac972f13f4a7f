package parked

import (
	"context"
	"crypto/sha256"
	"database/sql"
)

// Tombstone enters the message of a row in the inbox of its consumer, so that no copy
// of it runs. It returns false if the inbox has the id already. An id that is not
// stored as it came is not entered, and returns true: the inbox refuses such an id, so
// no copy can run. Tombstone waits for a transaction that is handling a copy.
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

// Handled reports whether the inbox has the message of a row. It waits for a
// transaction that is handling the message.
func (s *Store) Handled(ctx context.Context, tx *sql.Tx, id int64) (handled bool, err error) {
	result, err := tx.ExecContext(ctx, s.sql.enter, id)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err != nil || n == 0 {
		return true, err
	}
	_, err = tx.ExecContext(ctx, s.sql.leave, id)
	return false, err
}
