package retry

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/watermill-once/once/internal/parked"
)

// Retries tries failing messages again.
type Retries struct {
	config   Config
	store    *parked.Store
	patience parked.Patience
}

// New returns a Retries that parks messages in db, the consumer's own
// database. The tables must be there, see schema.Up.
func New(db *sql.DB, config Config) (*Retries, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("retry: %w", err)
	}
	store, err := parked.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("retry: %w", err)
	}
	return &Retries{
		config:   config,
		store:    store,
		patience: parked.Patience{Hold: config.Hold, Logger: config.Logger},
	}, nil
}

// delay is the policy's delay before the given delayed round, with its jitter.
func (r *Retries) delay(round int) time.Duration {
	return r.config.Policy.delay(round, rand.Float64())
}
