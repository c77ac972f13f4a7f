package durable

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
)

// Storage stores messages before they are handled.
type Storage struct {
	config      Config
	store       *parked.Store
	instruments *instruments
	oneTry      time.Duration // to store a batch; 0 is the ordinary time
}

// New returns an Intake that stores messages in db, the consumer's own
// database. The tables must be there, see schema.Up.
func New(db *sql.DB, config Config) (*Storage, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("durable", err)
	}
	store, err := parked.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	return &Storage{config: config, store: store, instruments: newInstruments(config)}, nil
}

// Subscriber wraps the subscriber of a transport, and is itself to be wrapped
// by retry's Subscriber: that gives it the consumer's name, and fetches what it
// has stored.
//
// Close closes sub, and returns when what sub has delivered until then is
// stored and acked or, if that fails, nacked. Subscribe is [ErrClosed] after it.
func (i *Storage) Subscriber(sub message.Subscriber) message.Subscriber {
	return &subscriber{intake: i, sub: sub, closing: make(chan struct{})}
}
