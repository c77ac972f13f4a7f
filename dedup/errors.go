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
	// ErrCollision says that the inbox has the id with another payload.
	ErrCollision = errors.New("the id was used for another payload")

	// ErrInvalidID says that a message has no id, or no key, that could be
	// remembered.
	ErrInvalidID = errors.New("unusable message id")

	// ErrNoConsumer says that there is no name to remember messages under.
	ErrNoConsumer = errors.New("no consumer name: set Config.Consumer, or use the middleware in a router")

	// ErrOtherConsumer says that Config.Consumer is not the name given to retry's
	// Subscriber, under which retry and poison look into the inbox. The handler is
	// not called, and the message is held.
	ErrOtherConsumer = errors.New("Config.Consumer is not the name given to retry's Subscriber: leave it empty, or give both one name")

	// ErrConsumerInUse says that two handlers of a router have one consumer name
	// and topic. The second one is not called, and its messages are handed back.
	ErrConsumerInUse = errors.New("two handlers have one consumer's name")

	// ErrNoOutbox says that a handler produced messages and there is nowhere
	// to store them.
	ErrNoOutbox = errors.New("the handler produced messages, but Config.Outbox is not set")

	// ErrNoTopic says that a produced message does not say where it is to go.
	ErrNoTopic = errors.New("a produced message has no topic: give it one with outbox.SetTopic or once.To, or the handler a publish topic")

	// ErrCommitUnknown says that the connection was lost during the commit.
	// The message is to be handled again: the inbox then knows.
	ErrCommitUnknown = dialect.ErrCommitUnknown
)

// lookWithin is how long the database may take to say that it is there.
const lookWithin = time.Second

// failed returns what the error of a handler, or of storing what it produced,
// says about the message. It ends the transaction.
//
//   - A verdict stands: the handler has given it, see retry.Permanent.
//   - A database that was away, full or shutting down, and a connection that
//     was lost, are undecided. Nobody can tell whether the message is to blame,
//     which may end its own session: retry charges it if this goes on.
//   - Everything else is the handler's failure.
func (i *Inbox) failed(ctx context.Context, tx *sql.Tx, release func(), err error) error {
	// Not by a statement: a result set that the handler left open is in its way,
	// and ended by this.
	lost := tx.Rollback()
	release() // the pool may have no other connection to look with
	switch {
	case disposition.Given(err):
		return err
	case i.dialect.SQLite():
		if dialect.Contended(err) || dialect.Unavailable(err) {
			return disposition.HandBack(err) // there is one writer, and another had it too long
		}
		return err
	case dialect.Unavailable(err):
		return disposition.HandBack(err)
	case lost == nil, errors.Is(lost, sql.ErrTxDone), notThere(lost), i.gaveUpWaiting(ctx, err):
		return err
	}
	return disposition.HandBack(fmt.Errorf("dedup: the connection was lost under the handler: %w", err))
}

// gaveUpWaiting tells a handler that gave up waiting from a database that went
// away: drivers close the connection of a statement whose context ends. Such a
// timeout is the handler's failure if the database answers on another connection.
func (i *Inbox) gaveUpWaiting(ctx context.Context, err error) bool {
	if !gaveUp(err) || errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookWithin)
	defer cancel()
	return i.db.PingContext(ctx) == nil
}

// gaveUp says that a context ended a statement, or that the server cancelled it
// (query_canceled), which is what lib/pq asks it for then.
func gaveUp(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || dialect.State(err) == "57014"
}

// errEnded says that the handler has committed or rolled back.
var errEnded = errors.New("the handler has ended its transaction, which it must neither commit nor roll back")

// endedByHandler is permanent. If the handler has committed, another try would
// find the message done and skip it, and what it produced would be lost without a
// word.
func endedByHandler(err error) error {
	return disposition.Forever(disposition.ReasonPermanent, fmt.Errorf("dedup: %w: %w", errEnded, err))
}

// commitError tells a commit that the database refused, which is a failure of
// what the handler wrote, from one whose outcome is unknown or that the
// database could not carry out.
func (i *Inbox) commitError(err error) error {
	if errors.Is(err, sql.ErrTxDone) || notThere(err) {
		return endedByHandler(err)
	}
	err = fmt.Errorf("dedup: %w", err)
	if errors.Is(err, ErrCommitUnknown) || dialect.Unavailable(err) || (i.dialect.SQLite() && dialect.Contended(err)) {
		return disposition.HandBack(err)
	}
	return err
}
