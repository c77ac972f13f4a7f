package service

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/lib/pq"

	"github.com/watermill-once/once/schema"
)

// idempotentRequest is a request that a client may repeat until it has heard
// the answer, without anything being done twice.
type idempotentRequest struct {
	key    string // "" if the client sent none: then each request is a new one
	digest [sha256.Size]byte
}

// answer is what was said to a client.
type answer struct {
	Status   int
	Location string
	Body     []byte
	Repeated bool // it was said before
}

var (
	// errKeyReused: the key came with another body before.
	errKeyReused = errors.New("service: the idempotency key was used for another request")

	// errKeyBusy: the first request with the key has not ended yet.
	errKeyBusy = errors.New("service: a request with this idempotency key is under way")
)

// claim enters the answer that will be given under the key into the
// transaction. If the key was used before it returns the answer from then. The
// primary key has requests at the same time wait for each other: the second
// finds the first one's answer, or takes over if it was rolled back.
func (r idempotentRequest) claim(ctx context.Context, tx *sql.Tx, a answer) (earlier answer, found bool, err error) {
	if r.key == "" {
		return answer{}, false, nil
	}
	result, err := tx.ExecContext(ctx,
		`INSERT INTO idempotency_keys (key, digest, status, location, body) VALUES ($1, $2, $3, $4, $5)
		 ON CONFLICT (key) DO NOTHING`,
		r.key, r.digest[:], a.Status, a.Location, a.Body)
	if err != nil {
		return answer{}, false, keyError(err)
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

// limitWaiting bounds how long the transaction waits for another one with the
// same key. SQLite has its busy_timeout.
func (s *Service) limitWaiting(ctx context.Context, tx *sql.Tx) error {
	if s.database.Tables.Dialect == schema.SQLite {
		return nil
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, s.keyTimeout.Milliseconds())); err != nil {
		return fmt.Errorf("service: limit waiting: %w", err)
	}
	return nil
}

func keyError(err error) error {
	var refused *pq.Error
	if errors.As(err, &refused) && refused.Code == "55P03" { // lock_not_available
		return errKeyBusy
	}
	return fmt.Errorf("service: enter the idempotency key: %w", err)
}

// keyProblem says what is wrong with an Idempotency-Key.
func keyProblem(key string) string {
	switch {
	case len(key) > 255:
		return "must be at most 255 characters long"
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }):
		return "must be printable ASCII"
	}
	return ""
}
