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

// Storage stores messages in the consumer's database before they are handled.
type Storage struct {
	config      Config
	store       *parked.Store
	instruments *instruments
	oneTry      time.Duration // timeout of one try to store a batch; 0 means the default of parked.Patience
}

// New returns a Storage that stores messages in db, the consumer's own database.
// It fails if db is nil or a field of config is invalid. The tables must exist,
// see schema.Up.
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

// Subscriber wraps the subscriber of a transport. Wrap the result with retry's
// Subscriber, which sets the consumer's name and fetches the stored messages.
//
// The Close method of the result closes sub. It waits until every message that sub has
// delivered was stored and acked, or was nacked because it could not be stored.
// Subscribe fails after Close.
func (s *Storage) Subscriber(sub message.Subscriber) message.Subscriber {
	return &subscriber{storage: s, sub: sub, closing: make(chan struct{})}
}
