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

// Config is what a [Transport] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. It is the one of
	// the consumers' retry and poison. Defaults to PostgreSQL and the prefix
	// "once_".
	Schema schema.Config

	// PublishTimeout bounds how long Publish may take to commit, and Subscribe to
	// register. Defaults to 30 seconds.
	PublishTimeout time.Duration

	// AbsentAfter is how long a registered consumer may not have been running
	// before Publish logs an error about it, at most once an hour: messages pile
	// up for it until it runs again, or [Transport.Forget] ends its registration.
	// At least 2 minutes. Defaults to 10 minutes.
	AbsentAfter time.Duration

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for
	// silence.
	Logger watermill.LoggerAdapter
}

// Transport delivers from publishers to the consumers that use the same
// database. It is a message.Publisher; [Transport.Subscriber] gives its other
// end.
type Transport struct {
	config Config
	store  *parked.Store

	mu      sync.Mutex
	running map[*subscription]struct{} // in this process, to be woken
	warned  map[registration]time.Time
	closed  bool
}

// registration names a consumer of a topic.
type registration struct{ consumer, topic string }

// New returns a transport through db. The tables must be there, see schema.Up.
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

// Close refuses further messages. What was published is in the database and is
// handled when its consumer runs.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}
