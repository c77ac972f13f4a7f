package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// Keys stores the keys of requests and their answers. Its methods may be called from
// any number of goroutines.
type Keys struct {
	db      *sql.DB
	config  Config
	dialect dialect.Dialect
	sql     queries
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
	return &Keys{db: db, config: config, dialect: d, sql: newQueries(d)}, nil
}

// sweepBatch is the maximum number of rows that one transaction removes.
const sweepBatch = 2000

// Sweep removes keys that are older than Config.Retention by the database's clock, and
// returns the number of removed keys. It uses short transactions.
func (k *Keys) Sweep(ctx context.Context) (removed int64, err error) {
	for {
		var n int64
		err := k.dialect.Write(ctx, k.db, func(tx *sql.Tx) error {
			result, err := tx.ExecContext(ctx, k.sql.sweep, -k.config.Retention.Milliseconds(), sweepBatch)
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

// Run calls Sweep every Config.SweepInterval until ctx ends, and then returns nil. Any
// number of processes may call it. If the database returns an error, Run logs the
// error, and tries again at the next sweep.
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
