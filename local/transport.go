package local

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

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

	// PublishTimeout bounds how long Publish may take to commit. Defaults to
	// 30 seconds.
	PublishTimeout time.Duration
}

// Transport delivers from a publisher to the consumers of the same process. It
// is a message.Publisher; [Transport.Subscriber] gives its other end.
type Transport struct {
	config Config
	store  *parked.Store

	mu     sync.Mutex
	topics map[string][]parked.Subscription
	closed bool
}

// New returns a transport through db. The tables must be there, see schema.Up.
func New(db *sql.DB, config Config) (*Transport, error) {
	config.PublishTimeout = cmp.Or(config.PublishTimeout, 30*time.Second)
	errs := []error{config.Schema.Validate()}
	if db == nil {
		errs = append(errs, errors.New("db is nil"))
	}
	if config.PublishTimeout < 0 {
		errs = append(errs, fmt.Errorf("PublishTimeout is %v: negative", config.PublishTimeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fields.Refused("local", err)
	}
	store, err := parked.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("local: %w", err)
	}
	return &Transport{config: config, store: store, topics: map[string][]parked.Subscription{}}, nil
}

// Close refuses further messages. What was published is in the database and is
// handled when its consumer runs.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}
