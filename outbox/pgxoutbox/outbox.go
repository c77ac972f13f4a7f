package pgxoutbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"weak"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// Outbox stores messages in the tables of one schema.Config. Use it in any number of goroutines and
// for several pools.
type Outbox struct {
	config     outbox.Config
	statements *outbox.Outbox
	byPool     sync.Map // weak.Pointer[pgxpool.Pool] -> *outbox.Outbox that names the schema of its tables
}

// New returns an Outbox. If config is invalid, the error names every invalid field. The
// dialect must be PostgreSQL.
func New(config outbox.Config) (*Outbox, error) {
	if d := config.Schema.WithDefaults().Dialect; d != schema.PostgreSQL {
		return nil, fmt.Errorf("pgxoutbox: Schema.Dialect is %q: pgx connects to PostgreSQL only", d)
	}
	statements, err := outbox.New(config)
	if err != nil {
		return nil, fmt.Errorf("pgxoutbox: %w", err)
	}
	return &Outbox{config: config, statements: statements}, nil
}

// named names the schema of the tables, because a function that uses a transaction can change the
// search path. Without tables it uses the search path.
func (o *Outbox) named(ctx context.Context, pool *pgxpool.Pool) *outbox.Outbox {
	key := weak.Make(pool)
	if known, ok := o.byPool.Load(key); ok {
		return known.(*outbox.Outbox) //nolint:forcetypeassert // nothing else is stored
	}
	config := o.config
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	var err error
	if config.Schema, err = schema.Find(ctx, db, config.Schema); err != nil {
		return o.statements
	}
	found, err := outbox.New(config)
	if err != nil { // the name of the schema has characters that Config.Schema does not allow
		found = o.statements
	}
	o.byPool.Store(key, found)
	return found
}

// standard is created at the first call, after a service has set OpenTelemetry's providers.
var standard = sync.OnceValue(func() *Outbox {
	o, err := New(outbox.Config{})
	if err != nil {
		panic(err) // cannot happen: the zero Config is valid
	}
	return o
})

// InTx is like [Outbox.InTx], for the table prefix "once_".
func InTx(
	ctx context.Context, pool *pgxpool.Pool, work func(tx pgx.Tx, events message.Publisher) error, hints ...func(),
) error {
	return standard().InTx(ctx, pool, work, hints...)
}

// Publisher is like [Outbox.Publisher], for the table prefix "once_".
func Publisher(ctx context.Context, tx pgx.Tx) message.Publisher {
	return standard().Publisher(ctx, tx)
}

// LockKey is like [Outbox.LockKey], for the table prefix "once_".
func LockKey(ctx context.Context, tx pgx.Tx, keys ...string) error {
	return standard().LockKey(ctx, tx, keys...)
}

// ErrNoTransaction means that the transaction is nil.
var ErrNoTransaction = errors.New("pgxoutbox: no transaction: the pgx.Tx is nil")

// LockKey locks ordering keys until tx ends, see outbox.LockKey. The context limits the wait.
func (o *Outbox) LockKey(ctx context.Context, tx pgx.Tx, keys ...string) error {
	if tx == nil {
		return ErrNoTransaction
	}
	statement, err := o.statements.LockStatement(keys...)
	if err != nil {
		return fmt.Errorf("pgxoutbox: %w", err)
	}
	if _, err := tx.Exec(ctx, statement); err != nil {
		return fmt.Errorf("pgxoutbox: lock the ordering keys: %w", err)
	}
	return nil
}

// Publisher returns a publisher that stores messages in tx. They are sent if, and only if, tx
// commits. If tx is nil, every Publish returns [ErrNoTransaction].
//
// Publish sends the statements immediately, in one round trip, and stores all messages of a call,
// or returns an error. After an outbox.ErrInvalid, tx is unchanged; after any other error, it can
// only be rolled back. If ctx ends during a statement, pgx closes the connection. Messages whose
// context has no trace get the trace of ctx. Close does nothing.
func (o *Outbox) Publisher(ctx context.Context, tx pgx.Tx) message.Publisher {
	return publisher{outbox: o, ctx: ctx, tx: tx}
}

type publisher struct {
	outbox *Outbox
	ctx    context.Context
	tx     pgx.Tx
}

func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	if p.tx == nil {
		return ErrNoTransaction
	}
	statements, done, err := p.outbox.statements.Statements(p.ctx, topic, msgs...)
	if err != nil {
		return err
	}
	return done(send(p.ctx, p.tx, statements, len(msgs), p.outbox.table()))
}

func (publisher) Close() error { return nil }

type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// send returns an error if PostgreSQL has inserted fewer rows than there are messages.
func send(ctx context.Context, to sender, statements []outbox.Statement, messages int, table string) error {
	if len(statements) == 0 {
		return nil
	}
	batch, inserted := &pgx.Batch{}, 0
	queue(batch, statements, &inserted)
	if err := to.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	return checkInserted(inserted, messages, table)
}

// queue adds the number of inserted rows to inserted when the batch has been sent.
func queue(batch *pgx.Batch, statements []outbox.Statement, inserted *int) {
	for _, s := range statements {
		batch.Queue(s.Query, s.Args...).Exec(func(tag pgconn.CommandTag) error {
			if tag.Insert() {
				*inserted += int(tag.RowsAffected())
			}
			return nil
		})
	}
}

// checkInserted: if PostgreSQL has ignored the insert, the events would never be sent.
func checkInserted(inserted, messages int, table string) error {
	if inserted >= messages {
		return nil
	}
	return dialect.Ignored(table, fmt.Sprintf("%d of %d rows were not inserted", messages-inserted, messages))
}

func (o *Outbox) table() string { return o.config.Schema.Table("outbox") }
