package retry

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
)

// Retries tries failing messages again.
type Retries struct {
	config   Config
	store    *parked.Store
	patience parked.Patience

	seenEvery time.Duration // how often subscriptions say that they run

	instruments *instruments
	watchers    watchers
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
		return nil, fields.Refused("retry", err)
	}
	store, err := parked.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("retry: %w", err)
	}
	return &Retries{
		config:   config,
		store:    store,
		patience: parked.Patience{UnackedWait: config.UnackedWait, Logger: config.Logger},

		seenEvery: parked.SeenEvery,

		instruments: newInstruments(config),
	}, nil
}

// policy is that of an error.
func (r *Retries) policy(err error) Policy {
	for _, class := range r.config.Classes {
		if class.Match(err) {
			return class.Policy
		}
	}
	return r.config.Policy
}
