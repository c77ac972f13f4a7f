package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Statement is an SQL statement with its arguments. The parameters are $1, $2, ... in
// PostgreSQL and ?1, ?2, ... in SQLite.
type Statement struct {
	Query string
	Args  []any
}

// Statements returns the statements that store messages, for libraries that do not use
// database/sql, such as package pgxoutbox. Execute all of them, in their order, in the
// business transaction. Together they store all messages of the call. If the outbox
// cannot accept a message, Statements returns an [ErrInvalid].
//
// Call the returned function done once, with the error of the statements or nil. The
// function done records the metrics of the call, and returns the error for the caller.
// This error says what to do if a table or a right is missing. Messages whose context
// has no trace get the trace of ctx.
func (o *Outbox) Statements(
	ctx context.Context, topic string, msgs ...*message.Message,
) (statements []Statement, done func(err error) error, err error) {
	call := o.instruments.begin(ctx, topic, msgs)
	records, err := o.check(topic, msgs, call)
	if err != nil {
		call.end(err)
		return nil, nil, err
	}
	for len(records) > 0 {
		n := cut(records)
		query, args := o.insert.statement(topic, records[:n])
		statements = append(statements, Statement{Query: query, Args: args})
		records = records[n:]
	}
	done = func(err error) error {
		if err != nil {
			err = o.failed(err)
		}
		call.end(err)
		return err
	}
	return statements, done, nil
}

// LockStatement returns the statement of LockKey. The statement has no arguments.
// Ignore the rows that the statement returns. LockStatement returns an error if keys is
// empty or contains an empty key.
func (o *Outbox) LockStatement(keys ...string) (string, error) {
	if len(keys) == 0 || slices.Contains(keys, "") {
		return "", errors.New("outbox: LockKey needs at least one ordering key, and no empty key")
	}
	return o.lock(keys), nil
}
