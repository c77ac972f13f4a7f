package operate

import (
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/schema"
)

// Config configures packages outbox, dead, parked and quarantine. Its zero value is ready.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// WithoutContent makes lists and groups leave out what needs the right to read messages:
	// payloads and their sizes, metadata, error texts and stacks, for the role of a watcher, see
	// docs/roles.md, with which Get and Export fail. Defaults to false.
	WithoutContent bool

	// InboxRetention is how long all consumers remember the ids of messages: the shortest
	// dedup.Config.Retention. A consumer may handle a message that was sent longer ago a second
	// time, so package dead replays it only with Plan.Force. Defaults to 7 days.
	InboxRetention time.Duration

	// ReplayLease is the length of the lease of a replay of many messages, which its process
	// renews. If the process dies, the replay can be resumed after the lease. At least 500 ms.
	// Defaults to 30 seconds.
	ReplayLease time.Duration

	// ReplayToAbsent allows replays of package quarantine to consumers that are not running.
	// The messages then wait until the consumer runs. Defaults to false: such a replay
	// returns quarantine.ErrNotRunning.
	ReplayToAbsent bool

	// MeterProvider creates the metrics of package quarantine. Defaults to the global provider.
	MeterProvider metric.MeterProvider
}
