// Package start is what the parts of a consumer's chain tell about themselves
// when a router starts, and which errors of a first connection may pass.
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

// Patience is how long a start waits for a database or a broker that cannot be
// reached. After that the rest of the service starts without it.
const Patience = 5 * time.Second

// Part describes one part of a chain. A field that does not concern the part
// is zero.
type Part struct {
	// Name is that of the package: "dedup", "retry", "poison", "inbox" or "sequence".
	Name string

	DB     *sql.DB // nil if the part works in the transactions of another
	Schema schema.Config
	Logger watermill.LoggerAdapter

	// Tables are those that the part uses, by their names without a prefix.
	Tables []string

	// Consumer is dedup.Config.Consumer, Outbox whether there is a dedup.Config.Outbox.
	Consumer string
	Outbox   bool

	// Retention is how long dedup remembers a message. Run removes what is older
	// until its context ends; nil if another process does that.
	Retention time.Duration
	Run       func(ctx context.Context) error

	// Concurrency is how many parked messages each subscription of retry handles
	// at once, and LongestDelay how long retry may try one message.
	Concurrency  int
	LongestDelay time.Duration
}

// Pinger is a transport that can say whether its broker lets it in.
type Pinger interface {
	// Ping returns nil if the broker accepts the connection. MayPass tells a
	// broker that cannot be reached from one that refuses.
	Ping(ctx context.Context) error
}

// Named is a subscriber that knows which consumer it delivers to: retry's.
type Named interface {
	ConsumerName() string
}

// Sharer is a [Named] that may have told that other handlers have its
// consumer's name on purpose.
type Sharer interface {
	SharesConsumer() bool
}

// Ping asks transport, if it is a [Pinger]. Otherwise it returns nil.
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

// MayPass reports whether err says that a server could not be reached or
// cannot work now, so that the same attempt may succeed later. A wrong
// password, an unknown database and an error that it does not know are final.
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
