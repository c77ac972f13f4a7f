// Package start describes the parts of a consumer's chain to once.Plugin, which
// checks them when a router starts. It also says which connection errors may pass
// by themselves.
package start

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/schema"
)

// Patience is how long a start waits for an unreachable database or broker. After
// that the service starts without it.
const Patience = 5 * time.Second

// Part describes one part of a chain. A field that does not concern the part is
// zero.
type Part struct {
	// Name is the package name: "dedup", "retry", "poison", "durable" or "sequence".
	Name string

	DB     *sql.DB // nil if the part uses the transactions of another part
	Schema schema.Config
	Logger watermill.LoggerAdapter

	// Tables are the names of the part's tables, without a prefix.
	Tables []string

	// Consumer is dedup.Config.Consumer. Outbox says whether dedup.Config.Outbox is set.
	Consumer string
	Outbox   bool

	// Retention is how long dedup remembers a message. Run removes older messages until
	// its context ends; it is nil if another process removes them.
	Retention time.Duration
	Run       func(ctx context.Context) error

	// Concurrency is how many parked messages each subscription of retry handles at
	// once. LongestDelay is how long retry may retry one message.
	Concurrency  int
	LongestDelay time.Duration

	// BatchSize is how many messages dedup handles in one transaction at most.
	// BatchInFlight is how many messages must be in flight so that batches are full.
	BatchSize, BatchInFlight int
}

// Pinger is a transport that can check its connection to the broker.
type Pinger interface {
	// Ping returns nil if the broker accepts the connection. Use MayPass to tell an
	// unreachable broker from a broker that refuses the connection.
	Ping(ctx context.Context) error
}

// Named is a subscriber that knows its consumer's name, like retry's.
type Named interface {
	ConsumerName() string
}

// Sharer is a [Named] subscriber whose consumer name several handlers may share.
type Sharer interface {
	SharesConsumer() bool
}

// Limited is a subscriber that limits how many messages are handled at the same time.
// If automatic is true, the subscriber raises the limit for a handler with batches, see
// package gather.
type Limited interface {
	InFlight() (limit int, automatic bool)
}

// Ping pings transport if it is a [Pinger]. Otherwise it returns nil.
func Ping(ctx context.Context, transport any) error {
	if p, ok := transport.(Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

type (
	refuser      interface{ Refused() bool }
	unavailabler interface{ Unavailable() bool }
)

// MayPass reports whether a later attempt may succeed, because err says that a server
// is unreachable or cannot work now. A wrong password, an unknown database and all
// unknown errors are final.
func MayPass(err error) bool {
	if err == nil {
		return false
	}
	var (
		refused     refuser
		unavailable unavailabler
		network     net.Error
	)
	if errors.As(err, &refused) && refused.Refused() {
		return false
	}
	if dialect.State(err) != "" { // the server has answered
		return dialect.Unavailable(err) || dialect.Contended(err)
	}
	for _, passing := range []error{
		context.DeadlineExceeded, context.Canceled, driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return dialect.Contended(err) || // SQLite busy
		errors.As(err, &unavailable) && unavailable.Unavailable() || errors.As(err, &network)
}
