package parked

import (
	"context"
	"crypto/sha256"
	"database/sql"
)

// Tombstone adds the message of a row to the inbox of its consumer, so that the handler
// is not called for a copy of the message. It returns false if the inbox contains the
// id already. Tombstone writes nothing and returns true if the envelope is damaged, or
// if the row could not store the original id of the message unchanged. In the second
// case the inbox refuses the original id, so the handler is not called for a copy
// anyway. If a transaction is handling a copy, Tombstone waits for its end.
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

// Handled reports whether the inbox contains the message of the row with this id. If a
// transaction is handling the message, Handled waits for its end.
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
