package outbox

import (
	"database/sql"
	"errors"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Schema is the outbox table as a schema adapter of watermill-sql, for use
// with its Publisher. The zero value is PostgreSQL and the prefix "once_";
// [Outbox.Schema] returns others.
//
// [Publisher] is that with the limits taken away: watermill-sql's own refuses
// topics with a slash, and cannot divide a call of more than 100 messages.
//
// It writes only. Rows leave the outbox when they have been sent, by package
// forwarder; a watermill-sql Subscriber on this table fails at its first query.
type Schema struct {
	outbox *Outbox
}

var _ wsql.SchemaAdapter = Schema{}

func (s Schema) of() *Outbox {
	if s.outbox == nil {
		return standard()
	}
	return s.outbox
}

// InsertQuery returns the statement that stores msgs, or why they are refused.
func (s Schema) InsertQuery(topic string, msgs message.Messages) (wsql.Query, error) {
	o := s.of()
	records, err := o.check(topic, msgs, &call{})
	if err != nil {
		return wsql.Query{}, err
	}
	switch most := cut(records); {
	case len(records) == 0:
		return wsql.Query{Query: "SELECT 1"}, nil // the Publisher executes what it is given
	case most < len(records):
		return wsql.Query{}, fmt.Errorf("outbox: %d messages are too many for one statement, %d would do: use outbox.Publisher",
			len(records), most)
	}
	return o.query(topic, records), nil
}

func (o *Outbox) query(topic string, records []record) wsql.Query {
	query, args := o.insert.statement(topic, records)
	return wsql.Query{Query: query, Args: args}
}

// errNotRead is what a Subscriber gets for a row.
var errNotRead = errors.New("outbox: this table is read by the forwarder, not by a subscriber")

// SelectQuery returns a query whose error says that this table is not read by
// a Subscriber.
func (s Schema) SelectQuery(string, string, wsql.OffsetsAdapter) wsql.Query {
	return wsql.Query{Query: `SELECT * FROM "the outbox is read by the forwarder, not by a subscriber"`}
}

// UnmarshalMessage returns an error: see [Schema.SelectQuery].
func (s Schema) UnmarshalMessage(wsql.Scanner) (wsql.Row, error) { return wsql.Row{}, errNotRead }

// SchemaInitializingQueries returns none: package schema creates the tables.
func (s Schema) SchemaInitializingQueries(string) []wsql.Query { return nil }

// SubscribeIsolationLevel returns the default: see [Schema.SelectQuery].
func (s Schema) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelDefault }
