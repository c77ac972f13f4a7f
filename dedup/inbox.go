package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
)

// Inbox remembers which messages each consumer has done.
type Inbox struct {
	db      *sql.DB
	config  Config
	dialect dialect.Dialect
	sql     queries

	instruments *instruments
	names       names
	consumers   sync.Map // names whose messages have a Key
	churn       dialect.Churn
	reminder    reminder
	sample      sample
}

// New returns the inbox in db. The tables must be there, see schema.Up.
func New(db *sql.DB, config Config) (*Inbox, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("dedup", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("dedup: %w", err)
	}
	return &Inbox{db: db, config: config, dialect: d, sql: newQueries(d, config), instruments: newInstruments(config)}, nil
}

// Middleware runs h at most once to success for each message id and consumer,
// inside a transaction that h finds with [TxFromContext]. Only what h writes
// through that transaction happens once.
//
// A message that is done already is skipped: nil is returned, so that it is
// acked. The messages that h produces go to the outbox and are not returned.
// One that its transport could not decode is refused, and h does not see it.
// It belongs inside of retry and poison, next to the handler, because each
// attempt needs a transaction of its own.
func (i *Inbox) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return i.middleware(func(msg *message.Message, consumer string) error { return i.once(msg, consumer, h) })
}

// middleware calls once for each message, and makes of its error what the
// router is to see.
func (i *Inbox) middleware(once func(msg *message.Message, consumer string) error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		defer msg.SetContext(ctx)
		consumer, err := i.consumer(parked.DeliveryOf(ctx))
		msg.Metadata = meta.Received(msg.Metadata) // a handler may pass it on
		call := i.instruments.begin(msg, consumer)
		defer call.end()

		if err == nil {
			err = once(msg, consumer)
		}
		call.outcome = outcomeOf(err)
		if errors.Is(err, errDone) {
			failpoint.Hit("dedup/known")
			i.config.Logger.Debug("Message is done already, skipped",
				watermill.LogFields{"message_uuid": msg.UUID, "consumer": consumer})
			return nil, nil
		}
		return nil, err
	}
}

// consumer returns the name that a message is remembered under.
func (i *Inbox) consumer(d *parked.Delivery) (string, error) {
	name := i.config.Consumer
	if name == "" {
		return d.Consumer, nil
	}
	// A discarded message is entered, and a crashed one looked for, as d's.
	if d.Subscribed && d.Consumer != name {
		return name, disposition.NotCalled(fmt.Errorf("dedup: %w: %q and %q", ErrOtherConsumer, name, d.Consumer))
	}
	return name, nil
}

// errDone says that the inbox has the message.
var errDone = errors.New("done already")

func (i *Inbox) once(msg *message.Message, consumer string, h message.HandlerFunc) error {
	identities, err := i.identify(msg, consumer)
	if err != nil {
		return err
	}
	ctx := msg.Context()
	tx, check, release, err := i.begin(ctx)
	if err != nil {
		return err
	}
	defer release() // also when h panics; the panic goes on

	if len(identities) == 0 || i.dialect.SQLite() { // else it goes with the claim
		if _, err := tx.ExecContext(ctx, i.sql.begin); err != nil {
			return disposition.NotCalled(fmt.Errorf("dedup: begin: %w", err))
		}
	}
	for _, id := range identities {
		failpoint.Hit("dedup/claim")
		if err := i.claim(ctx, tx, id, consumer, parked.Tenant(msg)); err != nil {
			return err
		}
	}
	if err := held(ctx); err != nil {
		return err
	}
	if err := i.handle(ctx, tx, msg, consumer, h); err != nil {
		return i.failed(ctx, tx, release, err)
	}
	failpoint.Hit("dedup/commit")
	if err := i.commit(ctx, tx, check, false); err != nil {
		return err
	}
	failpoint.Hit("dedup/committed")
	return nil
}

// begin begins a handler's transaction, which release, to be deferred, ends.
func (i *Inbox) begin(ctx context.Context) (tx *sql.Tx, check *dialect.Check, release func(), err error) {
	i.remind()
	if i.churn.Used(i.db) {
		i.config.Logger.Info("The pool closes connections as soon as they are free, and connecting takes most of the time: "+
			"have it keep as many as there are handlers, with SetMaxIdleConns",
			watermill.LogFields{"max_open": i.db.Stats().MaxOpenConnections, "idle": i.db.Stats().Idle})
	}
	check = &dialect.Check{SQL: i.sql.check}
	if i.dialect.SQLite() {
		check.Mark = i.sql.begin
	}
	tx, release, err = dialect.Begin(dialect.WithCheck(dialect.StartWithText(ctx), check), i.db, nil)
	if err != nil {
		return nil, nil, nil, disposition.NotCalled(fmt.Errorf("dedup: %w", err))
	}
	return tx, check, release, nil
}

// held refuses a message whose row others may have claimed. It is asked after
// the message was entered into the inbox: whoever gives it up looks there first,
// after claiming its row, and waits for what was entered.
func held(ctx context.Context) error {
	if err := parked.DeliveryOf(ctx).CheckLease(); err != nil {
		return disposition.NotCalled(fmt.Errorf("dedup: %w", err))
	}
	return nil
}

// claim enters a message into the inbox. It waits while another copy is being
// handled, and returns errDone if one has been.
func (i *Inbox) claim(ctx context.Context, tx *sql.Tx, id identity, consumer string, tenant any) error {
	result, err := i.sql.insert.Exec(ctx, tx, id.id, consumer, id.digest[:], tenant)
	if dialect.Unstorable(err) {
		return unstorable(err)
	}
	if err != nil {
		return disposition.NotCalled(fmt.Errorf("dedup: claim message %q for %q: %w", id.id, consumer, err))
	}
	fresh, err := result.RowsAffected()
	if err != nil {
		return disposition.NotCalled(fmt.Errorf("dedup: claim message %q for %q: %w", id.id, consumer, err))
	}
	if fresh == 1 {
		return nil
	}
	return i.compare(ctx, tx, id, consumer)
}

// compare tells a copy of a message from another message with the same id. The
// second must not be dropped as a duplicate, nor can it be applied.
func (i *Inbox) compare(ctx context.Context, tx *sql.Tx, id identity, consumer string) error {
	var same bool
	err := i.sql.same.Get(ctx, tx, &same, id.id, consumer, id.digest[:])
	switch {
	case err != nil: // also when retention has just removed the row: the next try inserts it
		return disposition.NotCalled(fmt.Errorf("dedup: compare message %q for %q: %w", id.id, consumer, err))
	case !same:
		return collided(id, consumer)
	}
	return errDone
}

func collided(id identity, consumer string) error {
	return disposition.Forever(disposition.ReasonCollision,
		fmt.Errorf("dedup: message %q for %q: %w", id.id, consumer, ErrCollision))
}

// handle calls h with the transaction and stores what it produced.
func (i *Inbox) handle(ctx context.Context, tx *sql.Tx, msg *message.Message, consumer string, h message.HandlerFunc) error {
	from := causeOf(msg) // h may change msg
	msg.SetContext(parked.WithTx(ctx, tx))
	failpoint.Hit("dedup/claimed")
	produced, err := h(msg)
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
