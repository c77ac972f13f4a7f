package service

import (
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/embedded"
)

// Local carries events through the service's own database, without a broker.
type Local struct {
	transport *embedded.Transport
	pool      *sql.DB
}

// NewLocal returns a transport through database.
func NewLocal(database Database) (*Local, error) {
	pool := database.Pool(4)
	transport, err := embedded.New(pool, embedded.Config{Schema: database.Tables})
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &Local{transport: transport, pool: pool}, nil
}

// Publisher implements [Transport].
func (l *Local) Publisher() message.Publisher { return l.transport }

// Subscriber implements [Transport].
func (l *Local) Subscriber(Subscription) (message.Subscriber, error) {
	return l.transport.Subscriber(), nil
}

// Close implements [Transport].
func (l *Local) Close() error { return errors.Join(l.transport.Close(), l.pool.Close()) }
