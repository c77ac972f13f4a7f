// Package start defines Part, which describes a part of a consumer's chain, such as the
// inbox or the retries. once.Plugin uses the descriptions to check all parts when a
// router starts. Package start also distinguishes temporary connection errors from
// permanent errors.
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

// Patience is how long the start of a service waits for an unreachable database or
// broker. After this time, the service starts without it.
const Patience = 5 * time.Second

// Part describes one part of a chain. Fields that do not apply to the part are zero.
type Part struct {
	// Name is the package name: "dedup", "retry", "poison", "durable" or "sequence".
	Name string

	DB     *sql.DB // nil if the part uses the transactions of another part
	Schema schema.Config
	Logger watermill.LoggerAdapter

	// Tables are the names of the tables that the part uses, without a prefix.
	Tables []string

	// Consumer is dedup.Config.Consumer. Outbox says whether the part writes to the outbox:
	// the inbox if dedup.Config.Outbox is set, and the quarantine if poison.Config.CopyTo
	// is set.
	Consumer string
	Outbox   bool

	// Retention is how long dedup remembers a message. Run removes older messages until its
	// context ends. Run is nil if another process removes them.
	Retention time.Duration
	Run       func(ctx context.Context) error

	// Concurrency is how many parked messages each subscription of retry handles at the
	// same time. LongestDelay is the longest time for which retry may retry a message.
	Concurrency  int
	LongestDelay time.Duration

	// BatchSize is the maximum number of messages that dedup handles in one transaction.
	// BatchInFlight is how many messages must be in flight so that batches are full.
	BatchSize, BatchInFlight int
}

// Pinger is a transport that can check its connection to the broker.
type Pinger interface {
	// Ping returns nil if the broker accepts the connection. Use MayPass to distinguish an
	// unreachable broker from a broker that refuses the connection.
	Ping(ctx context.Context) error
}

// Named is a subscriber that knows the name of its consumer, such as the Subscriber of
// package retry.
type Named interface {
	ConsumerName() string
}

// Sharer is a [Named] subscriber whose consumer name may be shared by several handlers.
type Sharer interface {
	SharesConsumer() bool
}

// Limited is a subscriber that limits how many messages are handled at the same time.
// If the result automatic is true, the subscriber increases the limit for a handler
// with batches, see package gather.
type Limited interface {
	InFlight() (limit int, automatic bool)
}

// Ping pings transport if transport is a [Pinger]. Otherwise it returns nil.
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

// MayPass reports whether err means that a server is unreachable, or cannot work now,
// so that a later attempt may succeed. For a wrong password, an unknown database and
// all unknown errors, it returns false.
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
	if dialect.State(err) != "" { // an error with a SQLSTATE is an answer of the server
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
