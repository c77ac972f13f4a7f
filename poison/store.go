package poison

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
)

// Quarantine is the quarantine.
type Quarantine struct {
	config      Config
	parked      *parked.Store
	patience    parked.Patience
	instruments *instruments
	hook        hook

	listening sync.Once
	consumers sync.Map // names that its Middleware has seen
}

// New returns the quarantine in db, the consumer's own database. The tables
// must be there, see schema.Up.
func New(db *sql.DB, config Config) (*Quarantine, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("poison", err)
	}
	store, err := parked.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return &Quarantine{
		config:   config,
		parked:   store,
		patience: parked.Patience{UnackedWait: config.UnackedWait, Logger: config.Logger},

		instruments: newInstruments(config),
		hook:        hook{call: config.OnQuarantine, logger: config.Logger},
	}, nil
}
