package embedded

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

// Config configures a [Transport]. The zero value is ready for use.
type Config struct {
	// Schema names the tables and the kind of database. Use the same value in the
	// retry.Config and the poison.Config of the consumers. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// PublishTimeout is the maximum time for Publish, and for the registration in
	// Subscribe. Defaults to 30 seconds.
	PublishTimeout time.Duration

	// AbsentAfter is how long a registered consumer may be absent before Publish logs an
	// error, at most once an hour. Until the consumer runs again, or [Transport.Forget]
	// ends its registration, its messages accumulate. The minimum is 2 minutes. Defaults to
	// 10 minutes.
	AbsentAfter time.Duration

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for
	// silence.
	Logger watermill.LoggerAdapter
}

// Transport delivers messages from publishers to consumers that use the same database.
// Transport implements message.Publisher. The method Subscriber returns subscribers.
type Transport struct {
	config Config
	store  *parked.Store

	mu      sync.Mutex
	running map[*subscription]struct{} // subscriptions of this process
	warned  map[registration]time.Time // when each absent consumer was last logged
	closed  bool
}

// registration identifies a consumer of a topic.
type registration struct{ consumer, topic string }

// New returns a Transport that stores messages in db. It returns an error if db is nil
// or a field of config is invalid. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Transport, error) {
	config.PublishTimeout = cmp.Or(config.PublishTimeout, 30*time.Second)
	config.AbsentAfter = cmp.Or(config.AbsentAfter, 10*time.Minute)
	if config.Logger == nil {
		config.Logger = watermill.NewSlogLogger(nil)
	}
	errs := []error{config.Schema.Validate()}
	if db == nil {
		errs = append(errs, errors.New("db is nil"))
	}
	if config.PublishTimeout < 0 {
		errs = append(errs, fmt.Errorf("PublishTimeout is %v: negative", config.PublishTimeout))
	}
	if config.AbsentAfter < parked.AbsentAfter {
		errs = append(errs, fmt.Errorf("AbsentAfter is %v: less than %v", config.AbsentAfter, parked.AbsentAfter))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fields.Refused("embedded", err)
	}
	store, err := parked.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return &Transport{
		config: config, store: store,
		running: map[*subscription]struct{}{}, warned: map[registration]time.Time{},
	}, nil
}

// Close makes Publish fail from now on. Messages that were published before are in the
// database, and are handled when their consumers run.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}

// Destination returns the default of forwarder.Config.Destination for a forwarder with
// this publisher. The text contains the name of the table that receives the messages.
func (t *Transport) Destination() string {
	return fmt.Sprintf("embedded transport, tables %s", t.config.Schema.Table("parked"))
}
