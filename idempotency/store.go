package idempotency

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/watermill-once/once/internal/dialect"
)

type queries struct {
	claim, find, answer, sweep string
}

func newQueries(d dialect.Dialect) queries {
	return queries{
		// This statement waits for another transaction that has inserted the same key. If
		// that transaction commits, the statement inserts nothing. If it rolls back, the
		// statement inserts the key.
		claim:  d.SQL(`INSERT INTO {idempotency_keys} (client, key, digest) VALUES ($1, $2, $3) ON CONFLICT (client, key) DO NOTHING`),
		find:   d.SQL(`SELECT digest, status, header, body FROM {idempotency_keys} WHERE client = $1 AND key = $2`),
		answer: d.SQL(`UPDATE {idempotency_keys} SET status = $3, header = $4, body = $5 WHERE client = $1 AND key = $2`),
		sweep: d.SQL(`DELETE FROM {idempotency_keys} WHERE (client, key) IN (
			SELECT client, key FROM {idempotency_keys} WHERE created_at < {after $1} ORDER BY created_at LIMIT $2)`),
	}
}

// request contains the data by which a repeated request is recognized.
type request struct {
	client, key string
	digest      [sha256.Size]byte
}

// answer is the answer that a handler has written.
type answer struct {
	status int
	header http.Header
	body   []byte
}

var (
	// errReused means that the key was used for a different request.
	errReused = errors.New("the key was used for another request")

	// errInProgress means that another request with the key is being handled.
	errInProgress = errors.New("a request with the key is being handled")
)

// claim inserts the key. If an earlier request used the key, claim returns the answer
// of the earlier request, or errReused if that request was different.
func (k *Keys) claim(ctx context.Context, tx *sql.Tx, r request) (earlier *answer, err error) {
	waiting, cancel := context.WithTimeoutCause(ctx, k.config.Wait, errInProgress)
	defer cancel()
	result, err := tx.ExecContext(waiting, k.sql.claim, r.client, r.key, r.digest[:])
	if err != nil {
		if ctx.Err() == nil && waiting.Err() != nil {
			err = fmt.Errorf("%w: %w", errInProgress, err)
		}
		return nil, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return nil, err
	}
	var digest, body []byte
	var header []byte
	var status int
	if err := tx.QueryRowContext(ctx, k.sql.find, r.client, r.key).Scan(&digest, &status, &header, &body); err != nil {
		return nil, err
	}
	if string(digest) != string(r.digest[:]) {
		return nil, errReused
	}
	earlier = &answer{status: status, body: body}
	return earlier, json.Unmarshal(header, &earlier.header)
}

// store stores the answer of a claimed key.
func (k *Keys) store(ctx context.Context, tx *sql.Tx, r request, a answer) error {
	header, err := json.Marshal(a.header)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, k.sql.answer, r.client, r.key, a.status, string(header), a.body)
	return err
}
