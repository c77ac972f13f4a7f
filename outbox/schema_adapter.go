package outbox

import (
	"database/sql"
	"errors"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// SchemaAdapter returns the outbox table as a schema adapter for the Publisher of
// watermill-sql. Prefer [Outbox.Publisher]: watermill-sql's Publisher refuses topics
// with a slash, and cannot split a call, so a call with more than 100 messages, or with
// too many bytes for one statement, fails.
//
// The adapter can only insert. Package forwarder reads the table. A Subscriber of
// watermill-sql fails at its first query.
func (o *Outbox) SchemaAdapter() wsql.SchemaAdapter { return schemaAdapter{o} }

type schemaAdapter struct {
	outbox *Outbox
}

func (s schemaAdapter) InsertQuery(topic string, msgs message.Messages) (wsql.Query, error) {
	records, err := s.outbox.check(topic, msgs, &call{})
	if err != nil {
		return wsql.Query{}, err
	}
	switch limit := cut(records); {
	case len(records) == 0:
		return wsql.Query{Query: "SELECT 1"}, nil // watermill-sql's Publisher executes a query even if there are no messages
	case limit < len(records):
		return wsql.Query{}, fmt.Errorf("outbox: %d messages are too many for one statement, the limit is %d: use outbox.Publisher",
			len(records), limit)
	}
	return s.outbox.query(topic, records), nil
}

func (o *Outbox) query(topic string, records []record) wsql.Query {
	query, args := o.insert.statement(topic, records)
	return wsql.Query{Query: query, Args: args}
}

var errNotRead = errors.New("outbox: this table is read by the forwarder, not by a subscriber")

// SelectQuery returns a query that fails. Its error says that the forwarder reads the
// table.
func (s schemaAdapter) SelectQuery(string, string, wsql.OffsetsAdapter) wsql.Query {
	return wsql.Query{Query: `SELECT * FROM "the outbox is read by the forwarder, not by a subscriber"`}
}

func (s schemaAdapter) UnmarshalMessage(wsql.Scanner) (wsql.Row, error) {
	return wsql.Row{}, errNotRead
}

// SchemaInitializingQueries returns no queries, because package schema creates the
// tables.
func (s schemaAdapter) SchemaInitializingQueries(string) []wsql.Query { return nil }

func (s schemaAdapter) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelDefault }
