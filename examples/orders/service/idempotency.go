package service

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// idempotentRequest is a request that a client may repeat until it gets an answer. The
// order is placed only once.
type idempotentRequest struct {
	key    string // "" if the client has sent no key; then every request is a new one
	digest [sha256.Size]byte
}

// answer is the response to a client.
type answer struct {
	Status   int
	Location string
	Body     []byte
	Repeated bool // an earlier request has got the same answer
}

var (
	// errKeyReused reports that an earlier request has used this key with another body.
	errKeyReused = errors.New("service: the idempotency key was used for another request")

	// errKeyBusy reports that an earlier request with this key has not ended yet.
	errKeyBusy = errors.New("service: a request with this idempotency key is under way")
)

// claim stores the answer under the request's key, in the transaction that places the
// order. If an earlier request has used the key, claim returns the answer to that
// request, and found is true. If two requests with the same key run at the same time,
// the primary key makes the second one wait. Then it finds the first one's answer, or
// stores its own if the first one was rolled back.
func (r idempotentRequest) claim(ctx context.Context, tx *sql.Tx, a answer) (earlier answer, found bool, err error) {
	if r.key == "" {
		return answer{}, false, nil
	}
	result, err := tx.ExecContext(ctx,
		`INSERT INTO idempotency_keys (key, digest, status, location, body) VALUES ($1, $2, $3, $4, $5)
		 ON CONFLICT (key) DO NOTHING`,
		r.key, r.digest[:], a.Status, a.Location, a.Body)
	if err != nil {
		return answer{}, false, fmt.Errorf("service: store the idempotency key: %w", err)
	}
	if inserted, err := result.RowsAffected(); err != nil || inserted == 1 {
		return answer{}, false, err
	}
	var digest []byte
	earlier = answer{Repeated: true}
	err = tx.QueryRowContext(ctx, `SELECT digest, status, location, body FROM idempotency_keys WHERE key = $1`, r.key).
		Scan(&digest, &earlier.Status, &earlier.Location, &earlier.Body)
	switch {
	case err != nil:
		return answer{}, false, fmt.Errorf("service: read the idempotency key: %w", err)
	case string(digest) != string(r.digest[:]):
		return answer{}, false, errKeyReused
	}
	return earlier, true, nil
}

// limitWait limits how long the transaction waits for another one with the same key. In
// SQLite, busy_timeout already does this.
func (s *Service) limitWait(ctx context.Context, tx *sql.Tx) error {
	if s.database.limitWait == nil {
		return nil
	}
	if _, err := tx.ExecContext(ctx, s.database.limitWait(s.keyTimeout.Milliseconds())); err != nil {
		return fmt.Errorf("service: set the lock timeout: %w", err)
	}
	return nil
}

// keyError returns errKeyBusy if err is a lock timeout, and otherwise err.
func (s *Service) keyError(err error) error {
	if s.database.lockTimeout != nil && s.database.lockTimeout(err) {
		return errKeyBusy
	}
	return err
}

// keyProblem returns why an Idempotency-Key is invalid, or "" if it is valid.
func keyProblem(key string) string {
	switch {
	case len(key) > 255:
		return "must be at most 255 characters long"
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }):
		return "must be printable ASCII"
	}
	return ""
}
