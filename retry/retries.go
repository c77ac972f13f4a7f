package retry

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
)

// Retries retries failing messages. Its Middleware retries and parks them; its
// Subscriber delivers the parked messages.
type Retries struct {
	config   Config
	store    *parked.Store
	patience parked.Patience

	registerEvery time.Duration // interval at which subscriptions record that they run

	instruments *instruments
	watchers    watchers
}

// New returns a Retries that parks messages in db, the consumer's own database.
// It fails if db is nil or a field of config is invalid. The tables must exist,
// see schema.Up.
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

		registerEvery: parked.SeenEvery,

		instruments: newInstruments(config),
	}, nil
}

// policy returns the policy of the first class that matches err.
func (r *Retries) policy(err error) Policy {
	for _, class := range r.config.Classes {
		if class.Match(err) {
			return class.Policy
		}
	}
	return r.config.Policy
}
