package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

// Inbox remembers which messages each consumer has handled.
type Inbox struct {
	db      *sql.DB
	config  Config
	dialect dialect.Dialect
	sql     queries
	claims  *dialect.Queries[claimQueries]

	instruments   *instruments
	consumerNames consumerNames
	keyConsumers  sync.Map // consumers for which Config.Key was called
	churn         dialect.Churn
	sweepWarning  sweepWarning
	sample        dialect.Sample
}

// New returns an Inbox that stores its rows in db. If config is invalid, the returned
// error lists every invalid field. New does not connect to db. The tables must exist
// when messages arrive, see schema.Up.
func New(db *sql.DB, config Config) (*Inbox, error) {
	config = config.withDefaults()
	d, err := dialect.New(config.Schema)
	err = errors.Join(err, config.validate())
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, usercode.Refused("dedup", err)
	}
	inbox := &Inbox{
		db: db, config: config, dialect: d, sql: newQueries(d, config), instruments: newInstruments(config),
		claims: dialect.NewQueries(d, func(d dialect.Dialect) claimQueries { return newClaimQueries(d, config) }),
	}
	chain.Register(chain.Code{Part: "dedup"}, inbox.Middleware)
	chain.Register(chain.Code{Part: "dedup", Batches: true}, inbox.BatchMiddleware)
	return inbox, nil
}

// Middleware runs h in a transaction, which h gets from [TxFromContext]. For each message id and
// consumer, h succeeds at most once. Only writes through this transaction take effect exactly once.
//
// A message that was handled before is skipped and acked. The messages that h returns are stored in
// the outbox. For a message that the transport could not decode, the middleware fails without
// calling h. Add Middleware as the innermost middleware, inside of retry and poison, because each
// attempt needs its own transaction.
func (i *Inbox) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return i.middleware(func(msg *message.Message, consumer string) error { return i.handleOnce(msg, consumer, h) })
}

func (i *Inbox) middleware(handleOnce func(msg *message.Message, consumer string) error) message.HandlerFunc {
	return chain.Registered("dedup", func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		defer msg.SetContext(ctx)
		consumer, err := i.consumer(parkedrows.DeliveryOf(ctx))
		msg.Metadata = meta.Received(msg.Metadata) // in a form that a handler may copy to the messages that it returns
		call := i.instruments.begin(msg, consumer)
		defer call.end()

		switch {
		case err != nil:
		case parkedrows.Tried(ctx, msg): // retry notices if the handler panics or ends its goroutine
			err = handleOnce(msg, consumer)
		default:
			err = chain.Run(func() error { return handleOnce(msg, consumer) })
		}
		call.outcome = outcomeOf(err)
		if errors.Is(err, errAlreadyHandled) {
			failpoint.Hit("dedup/known")
			i.config.Logger.Debug("Message was handled before, skipped",
				meta.LogFields(msg.UUID, msg.Metadata, watermill.LogFields{"consumer": consumer}))
			return nil, nil
		}
		return nil, err
	})
}

func (i *Inbox) consumer(d *parkedrows.Delivery) (string, error) {
	name := i.config.Consumer
	if name == "" {
		return d.Consumer, nil
	}
	if d.Subscribed && d.Consumer != name {
		return name, chain.NotCalled(fmt.Errorf("dedup: %w: %q and %q", ErrOtherConsumer, name, d.Consumer))
	}
	return name, nil
}

var errDuplicateInProgress = errors.New("another delivery of it is still being handled")

var errAlreadyHandled = errors.New("already handled")

func (i *Inbox) handleOnce(msg *message.Message, consumer string, h message.HandlerFunc) error {
	identities, err := i.identify(msg, consumer)
	if err != nil {
		return err
	}
	ctx := msg.Context()
	tx, check, release, err := i.begin(ctx, false)
	if err != nil {
		return err
	}
	defer release() // deferred, because h may end its goroutine

	if len(identities) == 0 || i.dialect.SQLite() { // otherwise claim sends these settings with its insert
		if _, err := tx.ExecContext(ctx, i.config.settings(marked(check))); err != nil {
			return chain.NotCalled(fmt.Errorf("dedup: begin: %w", err))
		}
	}
	for _, id := range identities {
		failpoint.Hit("dedup/claim")
		if err := i.claim(ctx, tx, marked(check), id, consumer, parkedrows.Tenant(msg)); err != nil {
			return err
		}
	}
	if err := checkLease(ctx); err != nil {
		return err
	}
	handling := parkedrows.WithTx(ctx, tx)
	err = i.handle(handling, tx, msg, consumer, h)
	after := handling.End()
	if err != nil {
		return i.failed(ctx, tx, release, err)
	}
	failpoint.Hit("dedup/commit")
	if err := i.commit(ctx, tx, check); err != nil {
		return err
	}
	failpoint.Hit("dedup/committed")
	i.callAfterCommit(after, consumer)
	return nil
}

// check is nil if commit needs no check. Defer release, which ends the transaction.
func (i *Inbox) begin(ctx context.Context, batch bool) (tx *sql.Tx, check *dialect.Check, release func(), err error) {
	i.warnIfNotSwept()
	if i.churn.Used(i.db) {
		i.config.Logger.Info("The connection pool closes connections as soon as they are free, and most time is spent connecting: "+
			"call SetMaxIdleConns with the number of handlers that run at the same time",
			watermill.LogFields{"max_open": i.db.Stats().MaxOpenConnections, "idle": i.db.Stats().Idle})
	}
	check = i.dialect.Check()
	tx, release, err = i.dialect.BeginScope(dialect.StartWithText(ctx), i.db, check)
	if err != nil {
		return nil, nil, nil, chain.NotCalled(fmt.Errorf("dedup: %w", err))
	}
	if !check.Sent && !batch && !i.dialect.SQLite() && !i.sample.Next() {
		check = nil
	}
	return tx, check, release, nil
}

// If the driver sends the check, it also sends the mark.
func marked(check *dialect.Check) bool { return check != nil && !check.Sent }

// checkLease returns an error if another process may have claimed a parked message. Call it after
// the insert into the inbox: a process that gives up on the message claims its row first and then
// searches the inbox, and this search waits for the transaction with the insert.
func checkLease(ctx context.Context) error {
	if err := parkedrows.DeliveryOf(ctx).CheckLease(); err != nil {
		return chain.NotCalled(fmt.Errorf("dedup: %w", err))
	}
	return nil
}

// claim inserts an identity into the inbox, or returns errAlreadyHandled or ErrCollision. While
// another transaction handles a duplicate, it waits, but no longer than Config.LockTimeout. If
// marked is true, the statement also creates the mark that commit checks.
func (i *Inbox) claim(ctx context.Context, tx *sql.Tx, marked bool, id identity, consumer string, tenant any) error {
	claims := i.claims.In(tx)
	insert := claims.insert
	if marked {
		insert = claims.markAndInsert
	}
	// With lock_timeout, each claim would have to reset it for the handler's statements, and a
	// consumer would handle 6 % fewer messages.
	waiting, cancel := ctx, func() {}
	if !i.dialect.SQLite() {
		waiting, cancel = context.WithTimeoutCause(ctx, i.config.LockTimeout, errDuplicateInProgress)
	}
	defer cancel()
	result, err := insert.Exec(waiting, tx, id.id, consumer, id.digest[:], tenant)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(waiting), err)
	}
	if dialect.Unstorable(err) {
		return unstorable(err)
	}
	if err != nil {
		dialect.Distrust(tx, err)
		return chain.NotCalled(fmt.Errorf("dedup: claim message %q for %q: %w", id.id, consumer, dialect.Denied(err)))
	}
	fresh, err := result.RowsAffected()
	if err != nil {
		dialect.Distrust(tx, err)
		return chain.NotCalled(fmt.Errorf("dedup: claim message %q for %q: %w", id.id, consumer, err))
	}
	if fresh == 1 {
		return nil
	}
	return i.compare(ctx, tx, id, consumer)
}

// compare returns errAlreadyHandled for a duplicate, and ErrCollision for another message with the
// same id, which can be neither skipped nor applied.
func (i *Inbox) compare(ctx context.Context, tx *sql.Tx, id identity, consumer string) error {
	var same bool
	err := i.claims.In(tx).same.Get(ctx, tx, &same, id.id, consumer, id.digest[:])
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return i.unclaimed(id, consumer)
	case err != nil:
		return chain.NotCalled(fmt.Errorf("dedup: compare message %q for %q: %w", id.id, consumer, err))
	case !same:
		return collisionError(id, consumer)
	}
	return errAlreadyHandled
}

// unclaimed is for a row that was not inserted, and does not exist: the database has ignored the
// insert, or the sweep has just removed the row. The handler must not run without a row in the
// inbox.
func (i *Inbox) unclaimed(id identity, consumer string) error {
	return chain.NotCalled(fmt.Errorf("dedup: claim message %q for %q: %w", id.id, consumer,
		i.dialect.Unchanged("inbox", "a row was not inserted")))
}

func collisionError(id identity, consumer string) error {
	return chain.Forever(chain.ReasonCollision,
		fmt.Errorf("dedup: message %q for %q: %w", id.id, consumer, ErrCollision))
}

func (i *Inbox) handle(ctx *parkedrows.TxContext, tx *sql.Tx, msg *message.Message, consumer string, h message.HandlerFunc) error {
	from := causeOf(msg) // h may change msg
	ctx.Mark = from.mark
	msg.SetContext(ctx)
	failpoint.Hit("dedup/claimed")
	var produced []*message.Message
	err := chain.Guarded(func() (err error) { produced, err = h(msg); return err })
	if err != nil {
		failpoint.Hit("dedup/failed")
		return err
	}
	failpoint.Hit("dedup/handled")
	for _, msg := range produced {
		from.mark(msg)
	}
	all, err := i.address(ctx, consumer, produced)
	if err != nil {
		return err
	}
	return i.store(tx, consumer, all)
}

// cause is what produced messages get from the message that caused them.
type cause struct {
	id, tenant string
	parent     string     // causation id of the handled message
	span       trace.Span // span of the handler; if no span is recorded here, span of the sender
}

func causeOf(msg *message.Message) cause {
	return cause{msg.UUID, msg.Metadata[meta.TenantID], msg.Metadata[meta.CausationID], trace.SpanFromContext(msg.Context())}
}

// mark does not change values that the handler has set. A nil msg is refused by address.
func (c cause) mark(msg *message.Message) {
	if msg == nil {
		return
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	if c.parent != "" && msg.Metadata[meta.CausationID] == c.parent { // the handler has copied all metadata
		delete(msg.Metadata, meta.CausationID)
	}
	for key, value := range map[string]string{meta.CausationID: c.id, meta.TenantID: c.tenant} {
		if msg.Metadata[key] == "" && value != "" {
			msg.Metadata[key] = value
		}
	}
	if !trace.SpanContextFromContext(msg.Context()).IsValid() {
		msg.SetContext(trace.ContextWithSpan(msg.Context(), c.span))
	}
}

// TxFromContext returns the transaction of the message whose context is ctx, or false outside of
// the inbox's middlewares. Writes through it take effect together with the message's row in the
// inbox, or not at all. A handler must not end the transaction, nor use it after it has returned.
//
// Writes through any other connection, such as a global *sql.DB, remain if the attempt fails, and
// the next attempt repeats them. oncetest.Run detects this.
func TxFromContext(ctx context.Context) (*sql.Tx, bool) { return parkedrows.TxOf(ctx) }

// Part describes the inbox to once.Plugin.
func (i *Inbox) Part() chain.Part {
	part := chain.Part{
		Name: "dedup", DB: i.db, Schema: i.config.Schema, Logger: i.config.Logger,
		Tables:   []string{"inbox", "parked", "replays"},
		Consumer: i.config.Consumer, Outbox: i.config.Outbox != nil, Retention: i.config.Retention,
		BatchSize: i.config.Batch.Size, BatchInFlight: i.config.Batch.inFlight(),
	}
	if !i.config.SweptElsewhere {
		part.Run = i.Run
	}
	return part
}
