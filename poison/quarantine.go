package poison

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
)

// Quarantine stores the messages that a consumer cannot handle, and lets people list,
// replay, edit and discard them. All methods are safe for concurrent use.
type Quarantine struct {
	config      Config
	table       *table
	patience    parked.Patience
	instruments *instruments
	hook        hook
	undecided   undecidedCalls

	started sync.Once // makes the first call of Middleware run observe
}

// New returns the quarantine in db, which must be the consumer's own database. The tables
// must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Quarantine, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("poison", err)
	}
	table, err := newTable(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	table.withoutContent = config.WithoutContent
	return &Quarantine{
		config:   config,
		table:    table,
		patience: parked.Patience{UnackedWait: config.UnackedWait, Logger: config.Logger},

		instruments: newInstruments(config),
		hook:        hook{call: config.OnQuarantine, logger: config.Logger},
	}, nil
}
