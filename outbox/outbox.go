package outbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

const (
	defaultMaxPayload = 16 << 20

	// PostgreSQL accepts statements of 1 GiB, and encoding a payload may double its size.
	payloadLimit = 256 << 20
)

// Config configures an [Outbox]. The zero value is ready for use.
type Config struct {
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// MaxPayload is the maximum size of a payload in bytes, up to 256 MiB. Set it to the limit of
	// the broker, because a larger message would become a dead letter. Defaults to 16 MiB,
	// RabbitMQ's default since 4.0.
	MaxPayload int

	// Check returns an error for a message that the broker can never accept. Publish then refuses
	// it with ErrInvalid, so that it does not become a dead letter. Set it to rabbit.Check for
	// RabbitMQ. It is called after the own checks, must not change the message, must be safe for
	// concurrent use, and its error must contain no secrets. Defaults to nil: the limits of the
	// broker are not checked.
	Check func(topic string, msg *message.Message) error

	// MeterProvider creates the metrics, and TracerProvider creates the spans. Both default to
	// OpenTelemetry's global providers.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.MaxPayload = cmp.Or(c.MaxPayload, defaultMaxPayload)
	return c
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.MaxPayload < 1 || c.MaxPayload > payloadLimit {
		errs = append(errs, fmt.Errorf("MaxPayload is %d, not in 1..%d", c.MaxPayload, payloadLimit))
	}
	return errors.Join(errs...)
}

// Outbox stores messages in the tables of one schema.Config. It has no state: use it in any number
// of goroutines and for several databases.
type Outbox struct {
	config  Config
	dialect dialect.Dialect
	insert  *dialect.Queries[insert]

	instruments *instruments
}

// New returns an Outbox. If config is invalid, the error names every invalid field.
func New(config Config) (*Outbox, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, usercode.Refused("outbox", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &Outbox{config: config, dialect: d, insert: dialect.NewQueries(d, newInsert), instruments: newInstruments(config)}, nil
}

// standard is for PostgreSQL and "once_". It is created at the first call, so that a service can
// set OpenTelemetry's global providers first.
var standard = sync.OnceValue(mustNew)

func mustNew() *Outbox {
	o, err := New(Config{})
	if err != nil {
		panic(err) // the zero Config is valid, so this cannot happen
	}
	return o
}

// InTx is like [Outbox.InTx], for PostgreSQL and the table prefix "once_".
func InTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx, events message.Publisher) error, hints ...func()) error {
	return standard().InTx(ctx, db, work, hints...)
}

// InTx calls work in a transaction, and then commits it. Writes through tx and messages published
// to events take effect together. If work fails, InTx rolls back and returns its error unchanged.
// If it panics, InTx rolls back and lets the panic continue.
//
// work must not end tx, not even with a statement such as ROLLBACK. If it does, Publish and InTx
// return errors, and messages that are published after it are not stored. With plain lib/pq or pgx,
// InTx notices a transaction that work has begun itself only in the first 100 calls and then in one
// of 32, because this check costs two round trips; with lazytx and SQLite always.
//
// The messages are stored in the tables that the search path of the connections in db leads to,
// even if work has changed it.
//
// ctx limits only the wait for a connection: pass it to the statements in work, too. Messages whose
// context has no trace get the trace of ctx.
//
// After the commit, InTx calls hints, such as the method Hint of a forwarder, except nil, also
// after [ErrCommitUnknown], because there may be messages to send.
func (o *Outbox) InTx(
	ctx context.Context, db *sql.DB, work func(tx *sql.Tx, events message.Publisher) error, hints ...func(),
) error {
	if db == nil || work == nil {
		return errors.New("outbox: InTx needs db and work, one of them is nil")
	}
	var failed error
	err := o.dialect.InTx(ctx, db, func(tx *sql.Tx) error {
		failpoint.Hit("outbox/begun")
		failed = work(tx, publisher{outbox: o, tx: tx, ctx: ctx})
		failpoint.Hit("outbox/worked")
		return failed
	})
	if failed != nil {
		return failed
	}
	if err == nil || errors.Is(err, ErrCommitUnknown) {
		failpoint.Hit("outbox/committed")
		for _, hint := range hints {
			if hint != nil { // a panic after the commit would look like a rollback
				hint()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// LockKey is like [Outbox.LockKey], for PostgreSQL and the table prefix "once_".
func LockKey(ctx context.Context, tx *sql.Tx, keys ...string) error {
	return standard().LockKey(ctx, tx, keys...)
}

// LockKey locks ordering keys until tx ends. Another transaction that locks one of them waits, so
// the events of a key are sent in the order of the commits.
//
// Call LockKey once, with all keys, before tx locks anything else. Otherwise two transactions can
// deadlock, and PostgreSQL ends one of them. Every transaction that publishes under the key must
// call it. You do not need it if all of these lock the same row before they publish, such as the
// row of the aggregate.
//
// In PostgreSQL, LockKey takes a transaction-level advisory lock, which also works through a
// connection pooler. The context and lock_timeout limit the wait. In SQLite, which has one writer
// at a time, tx becomes the writer. Keys may be in any order. LockKey returns [ErrNoTransaction] if
// tx is nil, and an error if keys is empty or contains an empty key.
func (o *Outbox) LockKey(ctx context.Context, tx *sql.Tx, keys ...string) error {
	if tx == nil {
		return ErrNoTransaction
	}
	statement, err := o.LockStatement(keys...)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("outbox: lock the ordering keys: %w", err)
	}
	return nil
}

func (o *Outbox) lock(keys []string) string {
	if o.dialect.SQLite() {
		return o.dialect.SQL(`DELETE FROM {outbox} WHERE 0`)
	}
	locks := make([]int64, len(keys))
	for i, key := range keys {
		sum := sha256.Sum256([]byte(o.dialect.Config().Table("outbox") + "\x00" + key))
		locks[i] = int64(binary.BigEndian.Uint64(sum[:]))
	}
	slices.Sort(locks) // all calls lock in the same order, so that they do not deadlock
	var b strings.Builder
	b.WriteString(`SELECT pg_advisory_xact_lock(key) FROM (VALUES `)
	for i, lock := range slices.Compact(locks) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "(%d::bigint)", lock)
	}
	b.WriteString(`) AS keys (key)`)
	return b.String()
}
