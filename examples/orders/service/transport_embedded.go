package service

import (
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/embedded"
)

// Embedded carries events through the service's own database. It needs no broker.
type Embedded struct {
	transport *embedded.Transport
	pool      *sql.DB
}

// NewEmbedded returns a transport that uses database.
func NewEmbedded(database Database) (*Embedded, error) {
	pool := database.Pool(4)
	transport, err := embedded.New(pool, embedded.Config{Schema: database.Tables})
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &Embedded{transport: transport, pool: pool}, nil
}

// Publisher implements [Transport].
func (e *Embedded) Publisher() message.Publisher { return e.transport }

// Subscriber implements [Transport].
func (e *Embedded) Subscriber(Subscription) (message.Subscriber, error) {
	return e.transport.Subscriber(), nil
}

// Check implements [Transport]. It returns nil, because the embedded transport can carry
// every message that the outbox stores.
func (e *Embedded) Check(string, *message.Message) error { return nil }

// Close implements [Transport].
func (e *Embedded) Close() error { return errors.Join(e.transport.Close(), e.pool.Close()) }
