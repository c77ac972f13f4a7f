package pgxoutbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// Outbox stores messages in the tables of one schema.Config. It has no state, so you
// can use one Outbox in any number of goroutines and for several pools.
type Outbox struct {
	statements *outbox.Outbox
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
	return &Outbox{statements}, nil
}

// standard returns the Outbox that the package functions use. The Outbox is created at
// the first call, so that a service can set OpenTelemetry's global providers first.
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

// LockKey locks ordering keys until tx ends. For details, see outbox.LockKey. The
// context limits the wait.
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
