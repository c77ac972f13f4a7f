package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/internal/dsn"
	"github.com/watermill-once/once/mover"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/reconcile"
	"github.com/watermill-once/once/schema"
)

// connectError means that the database cannot be reached, or refuses the login.
type connectError struct {
	cause   error
	dialect schema.Dialect
}

func (e connectError) Error() string {
	return fmt.Sprintf("connect to the database: %v", dsn.Hide(e.cause))
}

func (e connectError) Unwrap() error { return e.cause }

// hint returns the command or flag that solves the problem, in brackets, or "". The text
// of err does not name it, because err comes from the library, and the library does not
// know this command line.
func hint(cmd *cobra.Command, err error) string {
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
	connect, unreachable := errors.AsType[connectError](err)
	switch {
	case unreachable && connect.dialect == schema.SQLite:
		return " (check the file in ONCE_DSN or --dsn; once migrate up creates a new one)"
	case unreachable:
		return " (check the address and the user in ONCE_DSN or --dsn)"
	case is(pending.ErrNotFound, deadletter.ErrNotFound, parked.ErrNotFound, poison.ErrNotFound, poison.ErrReplayNotFound) && cmd.HasParent():
		return fmt.Sprintf(" (%s list shows the IDs)", cmd.Parent().CommandPath())
	case is(deadletter.ErrNotBlocked):
		return " (once outbox blocked shows the blocked keys)"
	case is(parked.ErrConsumerNotFound):
		return " (once consumers list shows the consumers and their topics)"
	case is(reconcile.ErrNoLog):
		return " (once forward has the flag --keep-sent)"
	case is(mover.ErrNoTable):
		return " (check --forwarder-topic, or name the table with --messages-table)"
	}
	return ""
}
