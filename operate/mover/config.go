package mover

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/schema"
)

// Config configures a [Mover]. The zero value is right for a forwarder of Watermill
// (components/forwarder) with default settings.
type Config struct {
	// Schema names the tables of the outbox, in the PostgreSQL database of Watermill's forwarder.
	// Defaults to the prefix "once_".
	Schema schema.Config

	// ForwarderTopic is the ForwarderTopic of Watermill's forwarder and its publishers. Defaults to
	// "forwarder_topic", as in Watermill.
	ForwarderTopic string

	// MessagesTable and OffsetsTable are the tables of Watermill's forwarder as in SQL, with quotes
	// where needed: the results of GenerateMessagesTableName and GenerateMessagesOffsetsTableName
	// of watermill-sql's adapters. Default to those of watermill-sql: "watermill_" and
	// "watermill_offsets_", each followed by the topic, in quotes.
	MessagesTable, OffsetsTable string

	// ConsumerGroup is the consumer group of the subscriber of Watermill's forwarder.
	// Defaults to "", as in watermill-sql.
	ConsumerGroup string

	// BatchSize is the maximum number of messages that one transaction moves. Defaults to 100.
	BatchSize int

	// PollInterval is how long Run waits after it has found no messages. Defaults to 250 ms.
	PollInterval time.Duration

	// MaxPayload is in bytes. Defaults to that of outbox.Config.MaxPayload, 16 MiB.
	MaxPayload int

	// Check returns an error for a message that the broker can never accept, which becomes a dead
	// letter, as outbox.Config.Check does. Set it to rabbit.Check if the forwarder sends to
	// RabbitMQ. Defaults to nil.
	Check func(topic string, msg *message.Message) error

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for silence.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics of the outbox, which count moved messages. Defaults to
	// OpenTelemetry's global provider.
	MeterProvider metric.MeterProvider
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.ForwarderTopic = cmp.Or(c.ForwarderTopic, "forwarder_topic")
	c.MessagesTable = cmp.Or(c.MessagesTable, `"watermill_`+c.ForwarderTopic+`"`)
	c.OffsetsTable = cmp.Or(c.OffsetsTable, `"watermill_offsets_`+c.ForwarderTopic+`"`)
	c.BatchSize = cmp.Or(c.BatchSize, 100)
	c.PollInterval = cmp.Or(c.PollInterval, 250*time.Millisecond)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

const maxBatchSize = 10_000

var (
	stockTopic = regexp.MustCompile(`^[A-Za-z0-9\-$:._]+$`)

	tableName = regexp.MustCompile(`^(` + sqlName + `\.)?` + sqlName + `$`)
)

const sqlName = `([A-Za-z_][A-Za-z0-9_$]*|"[^"\x00]+")`

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.Schema.Dialect == schema.SQLite {
		errs = append(errs, fmt.Errorf("Schema.Dialect is %q: the stock tables are in %q", schema.SQLite, schema.PostgreSQL))
	}
	if !stockTopic.MatchString(c.ForwarderTopic) {
		errs = append(errs, fmt.Errorf("ForwarderTopic %q is not a topic that watermill-sql accepts", c.ForwarderTopic))
	}
	for _, field := range []struct{ name, value string }{
		{"MessagesTable", c.MessagesTable},
		{"OffsetsTable", c.OffsetsTable},
	} {
		if !tableName.MatchString(field.value) {
			errs = append(errs, fmt.Errorf("%s %q is not a table name in SQL", field.name, field.value))
		}
	}
	if c.BatchSize < 1 || c.BatchSize > maxBatchSize {
		errs = append(errs, fmt.Errorf("BatchSize is %d, not in 1..%d", c.BatchSize, maxBatchSize))
	}
	if c.PollInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("PollInterval is %v: less than %v", c.PollInterval, time.Millisecond))
	}
	return errors.Join(errs...)
}

var (
	// ErrNoTable means that a table of Watermill's own forwarder is missing: a name in the Config
	// is wrong, or that forwarder has never run with this database.
	ErrNoTable = errors.New("no such table")

	// ErrQueueTable means that the messages table is a queue of watermill-sql v4
	// (PostgreSQLQueueSchema), which has no offsets, and marks or deletes acked rows. The mover
	// cannot take it over: change the writers to the outbox, and stop Watermill's own forwarder
	// when all rows are acked.
	ErrQueueTable = errors.New("the table is a queue of watermill-sql (PostgreSQLQueueSchema), which the mover cannot read: " +
		"change the writers to the outbox, and let Watermill's own forwarder send the rest")

	// ErrUnknownGroup means that the consumer group has no offset, but others have, so the mover
	// would move every message that was ever sent. If you want this, insert a row into the offsets
	// table: the name of the group as consumer_group, 0 as offset_acked, and '0' as
	// last_processed_transaction_id.
	ErrUnknownGroup = errors.New("mover: the consumer group has no offset, but others have")
)

func permanent(err error) bool {
	for _, target := range []error{
		ErrNoTable, ErrQueueTable, ErrUnknownGroup, schema.ErrMissing, schema.ErrOutdated, schema.ErrNewer, schema.ErrDialect,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

type queries struct {
	position, lock, groups, createGroup string
	waiting, next, advance              string
	exists, queue, left, writers        string
	insertDead                          string
}

// behind selects rows that the consumer group has not acked. With the OR of watermill-sql's
// subscriber, PostgreSQL cannot begin to read the index at the right place.
const behind = `(transaction_id, "offset") > ($1::text::xid8, $2::bigint)`

// readable is watermill-sql's own condition: no open transaction can add an earlier row. It uses
// the snapshot of the query that reads the rows.
const readable = `transaction_id < pg_snapshot_xmin(pg_current_snapshot())`

func newQueries(c Config, d dialect.Dialect) queries {
	position := `SELECT offset_acked, last_processed_transaction_id::text FROM ` + c.OffsetsTable + ` WHERE consumer_group = $1`
	return queries{
		position: position,
		lock:     position + ` FOR UPDATE`,
		groups:   `SELECT consumer_group FROM ` + c.OffsetsTable + ` ORDER BY consumer_group LIMIT 10`,

		// The stock subscriber executes the same statement before it subscribes.
		createGroup: `
			INSERT INTO ` + c.OffsetsTable + ` (consumer_group, offset_acked, last_processed_transaction_id)
			VALUES ($1, 0, '0') ON CONFLICT DO NOTHING`,

		// Without ORDER BY the planner may search from the wrong end of the table.
		waiting: `
			SELECT 1 FROM ` + c.MessagesTable + ` WHERE ` + behind + ` AND ` + readable + `
			ORDER BY transaction_id, "offset" LIMIT 1`,

		// The first row is read whatever its size. The last ORDER BY names the table, because
		// otherwise it would sort by the text of the transaction id.
		next: `
			SELECT "offset", transaction_id::text, uuid, payload, metadata::text
			FROM (SELECT *, SUM(size) OVER (ORDER BY transaction_id, "offset") - size AS before
			      FROM (SELECT "offset", transaction_id, uuid, payload, metadata,
			                   COALESCE(octet_length(payload::text), 0)::bigint AS size
			            FROM ` + c.MessagesTable + ` WHERE ` + behind + ` AND ` + readable + `
			            ORDER BY transaction_id, "offset" LIMIT $3) AS batch) AS sized
			WHERE before < $4 ORDER BY sized.transaction_id, sized."offset"`,

		advance: `
			UPDATE ` + c.OffsetsTable + ` SET last_processed_transaction_id = $1::text::xid8, offset_acked = $2
			WHERE consumer_group = $3`,

		exists: `SELECT to_regclass($1::text) IS NOT NULL`,

		queue: `
			SELECT COUNT(*) FILTER (WHERE attname = 'acked') > 0 AND COUNT(*) FILTER (WHERE attname = 'transaction_id') = 0
			FROM pg_attribute WHERE attrelid = $1::text::regclass AND NOT attisdropped`,

		left: `SELECT COUNT(*) FROM ` + c.MessagesTable + ` WHERE ` + behind,

		// A transaction that has inserted rows holds this lock until they are visible.
		writers: `
			SELECT COUNT(DISTINCT virtualtransaction) FROM pg_locks
			WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
			  AND relation = $1::text::regclass
			  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,

		insertDead: d.SQL(`
			INSERT INTO {outbox_dead} (position, message_id, topic, payload, metadata, created_at, attempts,
			                           last_error, reason, unknown, fingerprint)
			VALUES ($1, $2, $3, $4, $5, {now}, 0, $6, $7, $8, $9)`),
	}
}
