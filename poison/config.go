package poison

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/schema"
)

// Config is what a [Store] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// OnQuarantine is called after a message was stored, for an alarm or a
	// metric; reason is one of the Reason constants. It must return soon and must not keep msg. Defaults to nothing.
	OnQuarantine func(msg *message.Message, consumer, reason string, err error)

	// Hold is how long a message is kept, neither acked nor nacked, while it
	// cannot be stored; then it is handed back to the transport. Defaults to
	// 15 minutes.
	Hold time.Duration

	// Logger defaults to none.
	Logger watermill.LoggerAdapter
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	if c.Hold == 0 {
		c.Hold = 15 * time.Minute
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.Hold < 0 {
		errs = append(errs, fmt.Errorf("Hold is %v: negative", c.Hold))
	}
	return errors.Join(errs...)
}
