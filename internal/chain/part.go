package chain

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/schema"
)

// Part describes one part of a chain, such as the inbox or the retries, to the checks at the start
// of a router. Fields that do not apply are zero.
type Part struct {
	// Name is the package name: "dedup", "retry", "poison", "durable" or "sequence".
	Name string

	DB     *sql.DB // nil if the part uses the transactions of another part
	Schema schema.Config
	Logger watermill.LoggerAdapter

	Tables []string

	// Consumer is dedup.Config.Consumer, and Outbox whether dedup.Config.Outbox is set.
	Consumer string
	Outbox   bool

	// Retention is how long dedup remembers a message. Run removes older ones until its context
	// ends, or is nil if another process does.
	Retention time.Duration
	Run       func(ctx context.Context) error

	// Concurrency is how many parked messages each subscription of retry handles at the same time,
	// and LongestDelay the longest time for which it retries a message.
	Concurrency  int
	LongestDelay time.Duration

	// BatchSize is the most messages that dedup handles in one transaction. Batches are full with
	// BatchInFlight messages in flight.
	BatchSize, BatchInFlight int
}
