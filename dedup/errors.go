package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/verdict"
)

var (
	// ErrCollision says that the inbox has the id with another payload.
	ErrCollision = errors.New("the id was used for another payload")

	// ErrInvalidID says that a message has no id, or no key, that could be
	// remembered.
	ErrInvalidID = errors.New("unusable message id")

	// ErrNoConsumer says that there is no name to remember messages under.
	ErrNoConsumer = errors.New("no consumer name: set Config.Consumer, or use the middleware in a router")

	// ErrNoOutbox says that a handler produced messages and there is nowhere
	// to store them.
	ErrNoOutbox = errors.New("the handler produced messages, but Config.Outbox is not set")

	// ErrNoTopic says that a produced message does not say where it is to go.
	ErrNoTopic = errors.New("a produced message has no topic: set its once_topic metadata or the handler's publish topic")

	// ErrCommitUnknown says that the connection was lost during the commit.
	// The message is to be handled again: the inbox then knows.
	ErrCommitUnknown = dialect.ErrCommitUnknown
)

// handlerError returns the handler's own error as it is, unless our database
// went away under it: then nothing is known against the message.
func (i *Inbox) handlerError(tx *sql.Tx, err error) error {
	if i.dialect.SQLite() {
		if dialect.Contended(err) {
			return verdict.HandBack(err) // there is one writer, and another had it too long
		}
		return err
	}
	// A failed statement leaves the transaction aborted, which the server says
	// (25P02); a connection that is gone says nothing, or that it was ended.
	// The handler's error does not tell: it may be about another database.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, probe := tx.ExecContext(ctx, "SELECT 1")
	if probe == nil || errors.Is(probe, sql.ErrTxDone) || (dialect.State(probe) != "" && !dialect.Unavailable(probe)) {
		return err
	}
	return verdict.HandBack(fmt.Errorf("dedup: the connection was lost under the handler: %w", err))
}

// commitError tells a commit that the database refused, which is a failure of
// what the handler wrote, from one whose outcome is unknown or that the
// database could not carry out.
func (i *Inbox) commitError(err error) error {
	err = fmt.Errorf("dedup: %w", err)
	if errors.Is(err, ErrCommitUnknown) || dialect.Unavailable(err) || (i.dialect.SQLite() && dialect.Contended(err)) {
		return verdict.HandBack(err)
	}
	return err
}
