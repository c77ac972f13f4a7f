package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
)

var (
	// ErrCollision means that the id or the Config.Key of the message was used for another
	// message with different content. The message goes to quarantine.
	ErrCollision = errors.New("the id was used for another payload")

	// ErrInvalidID means that the id or the Config.Key of a message cannot be stored. The
	// message goes to quarantine.
	ErrInvalidID = errors.New("unusable message id")

	// ErrOtherConsumer means that Config.Consumer is not the name given to retry's
	// Subscriber. Retry and poison search the inbox under that name. The handler is not
	// called, and the message stays unacked or parked.
	ErrOtherConsumer = errors.New("Config.Consumer is not the name given to retry's Subscriber: leave it empty, or use the same name")

	// ErrConsumerInUse means that two handlers of a router have the same consumer name and
	// topic. The second handler is not called, and its messages are nacked.
	ErrConsumerInUse = errors.New("two handlers have the same consumer name")

	errNoConsumer = errors.New("no consumer name: set Config.Consumer, or use the middleware in a router")
	errNoOutbox   = errors.New("the handler produced messages, but Config.Outbox is not set")
	errNoTopic    = errors.New("a produced message has no topic: set it with outbox.SetTopic or once.To, or give the handler a publish topic")
)

// pingTimeout is how long gaveUpWaiting waits for the database.
const pingTimeout = time.Second

// failed ends the transaction after the error err, which the handler has returned, or
// which occurred when the messages that the handler produced were stored. It returns
// err with its disposition:
//
//   - If the handler has chosen a disposition, see retry.Permanent, it stays.
//   - If the database was unreachable, full or shutting down, or the connection was
//     lost, the error is undecided. The message itself may still be the cause, for
//     example if its handler runs a statement that ends the session. Therefore retry
//     counts an attempt if several consecutive calls end with such an error.
//   - Any other error is a failure of the handler.
func (i *Inbox) failed(ctx context.Context, tx *sql.Tx, release func(), err error) error {
	// The result of the rollback shows whether the connection was lost. A statement could
	// not show this if the handler has left a result set open.
	lost := tx.Rollback()
	release() // the pool may have no other connection for the next check
	switch {
	case disposition.Given(err):
		return err
	case i.dialect.SQLite():
		if dialect.Contended(err) || dialect.Unavailable(err) {
			return disposition.HandBack(err) // SQLite has one writer, and another transaction has blocked it for too long
		}
		return err
	case dialect.Unavailable(err):
		return disposition.HandBack(err)
	case lost == nil, errors.Is(lost, sql.ErrTxDone), transactionGone(lost), i.gaveUpWaiting(ctx, err):
		return err
	}
	return disposition.HandBack(fmt.Errorf("dedup: the connection was lost under the handler: %w", err))
}

// gaveUpWaiting reports whether the driver closed the connection because of the
// handler's own timeout. Drivers close a connection if the context of a running
// statement ends. gaveUpWaiting returns true if the database can be reached over
// another connection.
func (i *Inbox) gaveUpWaiting(ctx context.Context, err error) bool {
	if !statementCancelled(err) || errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	return i.db.PingContext(ctx) == nil
}

// statementCancelled reports whether a statement ended because its context ended.
// lib/pq then asks the server to cancel the statement, and the server returns
// query_canceled (57014).
func statementCancelled(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || dialect.State(err) == "57014"
}

// errTxEnded means that the handler committed its transaction or rolled it back.
var errTxEnded = errors.New("the handler has ended its transaction, which it must neither commit nor roll back")

// endedByHandler returns a permanent error. If the handler has committed, another
// attempt would skip the message as a duplicate. The messages that the handler produced
// would then be lost without notice.
func endedByHandler(err error) error {
	return disposition.Forever(disposition.ReasonPermanent, fmt.Errorf("dedup: %w: %w", errTxEnded, err))
}

// commitError returns the error of a commit with its disposition. If the database
// refused the commit, for example because of a deferred constraint, the error is a
// failure of the handler. If the outcome is unknown, or the database was not able to
// commit, the error is undecided.
func (i *Inbox) commitError(err error) error {
	if errors.Is(err, sql.ErrTxDone) || transactionGone(err) {
		return endedByHandler(err)
	}
	err = fmt.Errorf("dedup: %w", err)
	if errors.Is(err, dialect.ErrCommitUnknown) || dialect.Unavailable(err) || (i.dialect.SQLite() && dialect.Contended(err)) {
		return disposition.HandBack(err)
	}
	return err
}
