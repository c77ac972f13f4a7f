package idempotency

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// Keys stores the keys of requests and their answers. It is safe for concurrent use.
type Keys struct {
	db      *sql.DB
	config  Config
	dialect dialect.Dialect
	queries *dialect.Queries[queries]
}

// New returns a Keys that uses the tables of package schema. It does not connect to the
// database. If config is invalid, the error names every invalid field.
func New(db *sql.DB, config Config) (*Keys, error) {
	if db == nil {
		return nil, errors.New("idempotency: db is nil")
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	return &Keys{db: db, config: config, dialect: d, queries: dialect.NewQueries(d, newQueries)}, nil
}

const sweepBatch = 2000

// Sweep removes keys that are older than Config.Retention by the database's clock, and
// returns the number of removed keys. It uses short transactions.
func (k *Keys) Sweep(ctx context.Context) (removed int64, err error) {
	for {
		var n int64
		err := k.dialect.Write(ctx, k.db, func(tx *sql.Tx) error {
			result, err := tx.ExecContext(ctx, k.queries.In(nil).sweep, -k.config.Retention.Milliseconds(), sweepBatch)
			if err != nil {
				return err
			}
			n, err = result.RowsAffected()
			return err
		})
		if err != nil {
			return removed, fmt.Errorf("idempotency: sweep: %w", err)
		}
		if removed += n; n < sweepBatch {
			return removed, nil
		}
	}
}

// Run calls Sweep every Config.SweepInterval until ctx ends, and then returns nil. Errors are
// logged. Any number of processes may call it.
func (k *Keys) Run(ctx context.Context) error {
	tick := time.NewTicker(k.config.SweepInterval)
	defer tick.Stop()
	failing := false
	for {
		_, err := k.Sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			k.config.Logger.Error("Sweep of idempotency keys failed, will be tried again", err, nil)
		case err == nil && failing:
			k.config.Logger.Info("Sweep of idempotency keys works again", nil)
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

type queries struct {
	claim, find, answer, sweep string
}

func newQueries(d dialect.Dialect) queries {
	return queries{
		// This waits for a transaction that has inserted the key, and inserts it if that rolls
		// back.
		claim:  d.SQL(`INSERT INTO {idempotency_keys} (client, key, digest) VALUES ($1, $2, $3) ON CONFLICT (client, key) DO NOTHING`),
		find:   d.SQL(`SELECT digest, status, header, body FROM {idempotency_keys} WHERE client = $1 AND key = $2`),
		answer: d.SQL(`UPDATE {idempotency_keys} SET status = $3, header = $4, body = $5 WHERE client = $1 AND key = $2`),
		sweep: d.SQL(`DELETE FROM {idempotency_keys} WHERE (client, key) IN (
			SELECT client, key FROM {idempotency_keys} WHERE created_at < {after $1} ORDER BY created_at LIMIT $2)`),
	}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

var (
	errReused = errors.New("the key was used for another request")

	errInProgress = errors.New("a request with the key is being handled")
)

// claim inserts the key, or returns the earlier answer, or errReused for another request.
func (k *Keys) claim(ctx context.Context, tx *sql.Tx, r request) (earlier *answer, err error) {
	waiting, cancel := context.WithTimeoutCause(ctx, k.config.Wait, errInProgress)
	defer cancel()
	result, err := tx.ExecContext(waiting, k.queries.In(tx).claim, r.client, r.key, r.digest[:])
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
	if err := tx.QueryRowContext(ctx, k.queries.In(tx).find, r.client, r.key).Scan(&digest, &status, &header, &body); err != nil {
		if errors.Is(err, sql.ErrNoRows) { // a sweep may have removed the row, too
			err = k.dialect.Unchanged("idempotency_keys", "the row of a key was not inserted")
		}
		return nil, err
	}
	if string(digest) != string(r.digest[:]) {
		return nil, errReused
	}
	earlier = &answer{status: status, body: body}
	return earlier, json.Unmarshal(header, &earlier.header)
}

func (k *Keys) store(ctx context.Context, tx *sql.Tx, r request, a answer) error {
	header, err := json.Marshal(a.header)
	if err != nil {
		return err
	}
	stored, err := dialect.Affected(tx.ExecContext(ctx, k.queries.In(tx).answer, r.client, r.key, a.status, string(header), a.body))
	if err == nil && stored == 0 { // this transaction has inserted the row
		err = k.dialect.Unchanged("idempotency_keys", "the answer was not stored")
	}
	return err
}
