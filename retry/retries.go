package retry

import (
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
)

// Retries retries failing messages. Its Middleware retries and parks them, and its
// Subscriber delivers the parked messages.
type Retries struct {
	config   Config
	store    *parked.Store
	patience parked.Patience

	registerEvery time.Duration // how often each subscription renews its registration

	used chan struct{} // closed at the first call of Middleware
	use  func()        // closes the channel used

	instruments *instruments
	watchers    watchers
}

// New returns a Retries that parks messages in db, which must be the consumer's own
// database. It returns an error if db is nil or config is invalid. The tables must
// exist, see schema.Up.
func New(db *sql.DB, config Config) (*Retries, error) {
	config = config.withDefaults()
	store, err := parked.NewStore(db, config.Schema)
	if err = errors.Join(err, config.validate()); err != nil {
		return nil, fields.Refused("retry", err)
	}
	used := make(chan struct{})
	return &Retries{
		config:   config,
		store:    store,
		patience: parked.Patience{UnackedWait: config.UnackedWait, Logger: config.Logger},

		registerEvery: parked.SeenEvery,

		used: used,
		use:  sync.OnceFunc(func() { close(used) }),

		instruments: newInstruments(config),
	}, nil
}

// policy returns the policy of the first class that matches err, or Config.Policy.
func (r *Retries) policy(err error) Policy {
	for _, class := range r.config.Classes {
		if class.Match(err) {
			return class.Policy
		}
	}
	return r.config.Policy
}
