package chain

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/schema"
)

// Part describes one part of a chain, such as the inbox or the retries. once.Plugin
// checks all parts when a router starts. Fields that do not apply to the part are zero.
type Part struct {
	// Name is the package name: "dedup", "retry", "poison", "durable" or "sequence".
	Name string

	DB     *sql.DB // nil if the part uses the transactions of another part
	Schema schema.Config
	Logger watermill.LoggerAdapter

	// Tables are the names of the tables that the part uses, without a prefix.
	Tables []string

	// Consumer is dedup.Config.Consumer. Outbox says whether dedup.Config.Outbox is
	// set.
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
