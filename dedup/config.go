package dedup

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/schema"
)

// Config is what an [Inbox] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// Consumer is the name under which messages count as done. It must stay
	// the same for good: under a new name everything is unprocessed again.
	// Defaults to the name given to retry's Subscriber, or else to the
	// router's name of the handler.
	Consumer string

	// Outbox returns a publisher into the outbox of tx, as outbox.Publisher
	// does. What a handler produces is stored through it in the handler's own
	// transaction. Defaults to nil: a handler that produces messages is then
	// an error, because published after the commit they could be lost.
	Outbox func(tx *sql.Tx) message.Publisher

	// LockTimeout is how long a copy of a message waits for another copy that
	// is being handled. Not used with SQLite, which has its busy_timeout.
	// Defaults to 10 seconds.
	LockTimeout time.Duration

	// IdleTimeout is how long a handler may leave its transaction idle before
	// PostgreSQL ends it, so that a frozen process does not hold up other
	// copies for ever. It is to be longer than any call a handler makes to
	// elsewhere. Defaults to 5 minutes.
	IdleTimeout time.Duration

	// Logger defaults to none.
	Logger watermill.LoggerAdapter
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	if c.LockTimeout == 0 {
		c.LockTimeout = 10 * time.Second
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 5 * time.Minute
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if err := c.Schema.Validate(); err != nil {
		errs = append(errs, err)
	}
	if len(c.Consumer) > maxName {
		errs = append(errs, fmt.Errorf("Consumer is longer than %d bytes", maxName))
	}
	for name, value := range map[string]time.Duration{"LockTimeout": c.LockTimeout, "IdleTimeout": c.IdleTimeout} {
		if value < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %v: less than a millisecond", name, value))
		}
	}
	return errors.Join(errs...)
}
