package dedup

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

// commit commits tx, after checking that it is still the transaction of begin: the handler may have
// run a statement such as ROLLBACK AND CHAIN, which database/sql does not notice.
//
// The check costs a round trip, except with SQLite, and with lazytx, which sends it together with
// COMMIT if a statement may have ended the transaction. Therefore begin selects the transactions to
// check: all batches, and a sample of the others. check is nil for the rest.
func (i *Inbox) commit(ctx context.Context, tx *sql.Tx, check *dialect.Check) error {
	if !i.dialect.SQLite() { // in SQLite the check finds the same
		if err := dialect.Ended(tx); err != nil {
			i.sample.All()
			return endedByHandler(err)
		}
	}
	if check != nil && !check.Sent {
		if _, err := tx.ExecContext(context.WithoutCancel(ctx), check.SQL); err != nil {
			return i.checkError(err)
		}
	}
	err := i.dialect.Commit(tx)
	if err == nil {
		return nil
	}
	if dialect.Gone(err) {
		i.sample.All()
	}
	return i.commitError(err)
}

// checkError returns an error with its disposition. After it, the transaction is not committed.
func (i *Inbox) checkError(err error) error {
	switch {
	case dialect.Gone(err):
		i.sample.All()
	case !i.dialect.SQLite() && dialect.State(err) == "" && !errors.Is(err, sql.ErrTxDone): // the connection was lost
		return chain.HandBack(fmt.Errorf("dedup: check the transaction: %w", err))
	}
	return i.commitError(err)
}

var (
	// ErrCollision means that the id or the Config.Key of the message was used for another message
	// with different content. The message goes to quarantine.
	ErrCollision = errors.New("the id was used for another payload")

	// ErrInvalidID means that the id or the Config.Key of a message cannot be stored. The message
	// goes to quarantine.
	ErrInvalidID = errors.New("unusable message id")

	// ErrOtherConsumer means that Config.Consumer is not the name given to retry's Subscriber.
	// Retry and poison search the inbox under that name, so the handler is not called, and the
	// message stays unacked or parked.
	ErrOtherConsumer = errors.New("Config.Consumer is not the name given to retry's Subscriber: leave it empty, or use the same name")

	// ErrConsumerInUse means that two handlers of a router have the same consumer name and
	// topic. The second handler is not called, and its messages are nacked.
	ErrConsumerInUse = errors.New("two handlers have the same consumer name")

	errNoConsumer = errors.New("no consumer name: set Config.Consumer, or use the middleware in a router")
	errNoOutbox   = errors.New("the handler produced messages, but Config.Outbox is not set")
	errNilMessage = errors.New("the produced message is nil: leave it out")
	errNoTopic    = errors.New("a produced message has no topic: set it with outbox.SetTopic or once.To, or give the handler a publish topic")

	errReturnedTwice = errors.New("the handler has returned this *message.Message twice, and a message has only one topic: " +
		"return a copy of it, made with Copy, for each further topic")
)

const pingTimeout = time.Second

// failed ends the transaction after an error of the handler, or an error in storing its messages. It
// returns err with its disposition:
//
//   - If the handler has chosen a disposition, see retry.Permanent, it stays.
//   - If other transactions have caused the error, for example a deadlock,
//     chain.Guard has given it its disposition, which stays.
//   - If the database was unreachable, full or shutting down, or the connection was
//     lost, the error is undecided. The message itself may still be the cause, for
//     example if its handler runs a statement that ends the session. Therefore retry
//     counts an attempt if several consecutive calls end with such an error.
//   - Any other error is a failure of the handler.
func (i *Inbox) failed(ctx context.Context, tx *sql.Tx, release func(), err error) error {
	// The rollback shows whether the connection was lost. A statement could not if the handler has
	// left a result set open.
	lost := tx.Rollback()
	dialect.Distrust(tx, err)
	release() // the pool may have no other connection for the next check
	switch {
	case errors.Is(err, dialect.ErrEnded):
		i.sample.All()
		return endedByHandler(err)
	case chain.Given(err):
		return err
	case dialect.Unavailable(err):
		return chain.HandBack(err)
	case i.dialect.SQLite(), lost == nil, errors.Is(lost, sql.ErrTxDone), dialect.Gone(lost), i.gaveUpWaiting(ctx, err):
		return err
	}
	return chain.HandBack(fmt.Errorf("dedup: the connection was lost under the handler: %w", err))
}

// gaveUpWaiting reports whether the driver closed the connection because of the handler's own
// timeout, as drivers do if the context of a running statement ends: the database can be reached
// over another connection.
func (i *Inbox) gaveUpWaiting(ctx context.Context, err error) bool {
	if !statementCancelled(err) || errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	return i.db.PingContext(ctx) == nil
}

// lib/pq asks the server to cancel a statement whose context has ended, and the server returns
// query_canceled (57014).
func statementCancelled(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || dialect.State(err) == "57014"
}

var errTxEnded = errors.New("the handler has ended its transaction, which it must neither commit nor roll back")

// The error is permanent: if the handler has committed, another attempt would skip the message as a
// duplicate, and the messages that it produced would be lost without notice.
func endedByHandler(err error) error {
	return chain.Forever(chain.ReasonPermanent, fmt.Errorf("dedup: %w: %w", errTxEnded, err))
}

// commitError returns the error of a commit with its disposition. A refused commit, for example
// because of a deferred constraint, is a failure of the handler. An unknown outcome, or a database
// that could not commit, is undecided. An error that other transactions caused stays, and retry
// recognizes it.
func (i *Inbox) commitError(err error) error {
	if errors.Is(err, sql.ErrTxDone) || dialect.Gone(err) {
		return endedByHandler(err)
	}
	err = fmt.Errorf("dedup: %w", err)
	if errors.Is(err, dialect.ErrCommitUnknown) || dialect.Unavailable(err) {
		return chain.HandBack(err)
	}
	return err
}

// AfterCommit registers f to be called after the commit of the message's transaction and before the
// message is acked. ctx must be the message's context. f is called at most once, so use it only for
// work that may be lost, such as clearing a cache, waking a goroutine or counting. f is not called
// if the attempt fails, if the message is a duplicate, if the process dies first, or if the
// connection is lost during the commit. The next attempt registers its own functions.
//
// The functions are called in the order of their registration, in a batch in the order of its
// messages. Meanwhile the messages of the transaction are not acked, and the handler's next message
// waits, so f must be quick. If f panics, the panic is logged, and the message remains handled.
//
// AfterCommit returns an error if f is nil, if ctx has no transaction, or if the handler has
// already returned.
func AfterCommit(ctx context.Context, f func()) error {
	if f == nil {
		return errors.New("dedup: AfterCommit: the function is nil")
	}
	if err := parkedrows.AfterCommit(ctx, f); err != nil {
		return fmt.Errorf("dedup: AfterCommit: %w", err)
	}
	return nil
}

func (i *Inbox) callAfterCommit(functions []func(), consumer string) {
	for _, f := range functions {
		if err := chain.Run(func() error { f(); return nil }); err != nil {
			i.config.Logger.Error("Function of AfterCommit panicked", err,
				watermill.LogFields{"consumer": consumer, "stack": usercode.Stack(err)})
		}
	}
}

type addressed struct {
	topic string
	msg   *message.Message
}

// The topic of a produced message is in its metadata, or the handler's publish topic.
func (i *Inbox) address(ctx context.Context, consumer string, produced []*message.Message) ([]addressed, error) {
	if len(produced) > 0 && i.config.Outbox == nil {
		return nil, chain.Forever(chain.ReasonPermanent, fmt.Errorf("dedup: consumer %q: %w", consumer, errNoOutbox))
	}
	all := make([]addressed, len(produced))
	seen := make(map[*message.Message]bool, len(produced))
	for n, msg := range produced {
		topic, err := topicOf(ctx, seen, msg)
		if err != nil {
			return nil, chain.Forever(chain.ReasonPermanent, fmt.Errorf("dedup: consumer %q: message %d: %w", consumer, n, err))
		}
		all[n] = addressed{topic, msg}
		seen[msg] = true
	}
	return all, nil
}

// topicOf returns an error if the handler has returned msg twice: a message has only one topic, so
// the second topic would have replaced the first one.
func topicOf(ctx context.Context, seen map[*message.Message]bool, msg *message.Message) (string, error) {
	switch {
	case msg == nil:
		return "", errNilMessage
	case seen[msg]:
		return "", fmt.Errorf("id %q: %w", msg.UUID, errReturnedTwice)
	}
	topic := cmp.Or(msg.Metadata[meta.Topic], message.PublishTopicFromCtx(ctx))
	if topic == "" {
		return "", errNoTopic
	}
	return topic, nil
}

// store inserts produced messages into the outbox, in the transaction of their handler. The router
// would publish them after the commit, and they would be lost if the process died before.
// Consecutive messages with the same topic share a statement.
func (i *Inbox) store(tx *sql.Tx, consumer string, all []addressed) error {
	if len(all) == 0 {
		return nil
	}
	return chain.Guarded(func() error { return publishAll(i.config.Outbox(tx), consumer, all) })
}

func publishAll(publisher message.Publisher, consumer string, all []addressed) error {
	for len(all) > 0 {
		topic := all[0].topic
		var msgs []*message.Message
		for len(all) > 0 && all[0].topic == topic {
			msgs = append(msgs, all[0].msg)
			all = all[1:]
		}
		if err := chain.Guard(publisher.Publish(topic, msgs...)); err != nil {
			if errors.Is(err, sql.ErrTxDone) {
				return endedByHandler(err)
			}
			return fmt.Errorf("dedup: consumer %q: %d messages for %q: %w", consumer, len(msgs), topic, err)
		}
	}
	return nil
}
