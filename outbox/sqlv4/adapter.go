// Package sqlv4 lets the Publisher of watermill-sql v4 write to the outbox. In a service that has
// this Publisher, only its schema adapter changes:
//
//	publisher, err := sql.NewPublisher(sql.TxFromStdSQL(tx), sql.PublisherConfig{
//		SchemaAdapter: sqlv4.SchemaAdapter(),
//	}, logger)
//
// With sql.TxFromPgx, the Publisher writes in a transaction of pgx. The package is a separate
// module, so that other users do not need watermill-sql v4. For v3, see outbox.SchemaAdapter.
package sqlv4

import (
	stdsql "database/sql"
	"errors"
	"sync"

	v3 "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"

	"github.com/watermill-once/once/outbox"
)

// SchemaAdapter is like [NewSchemaAdapter], for PostgreSQL and the table prefix "once_".
func SchemaAdapter() sql.SchemaAdapter { return standard() }

// standard is created at the first call, after a service has set OpenTelemetry's providers.
var standard = sync.OnceValue(func() sql.SchemaAdapter { return adapter{outbox.SchemaAdapter()} })

// NewSchemaAdapter returns the table of an outbox as a schema adapter for the Publisher of
// watermill-sql v4. Messages are checked as by outbox.Outbox.Publisher, with the differences that
// outbox.Outbox.SchemaAdapter lists.
//
// The adapter can only insert: a Subscriber of watermill-sql fails at its first query.
func NewSchemaAdapter(o *outbox.Outbox) sql.SchemaAdapter { return adapter{o.SchemaAdapter()} }

// adapter gives the adapter for v3 the interface of v4.
type adapter struct {
	v3 v3.SchemaAdapter
}

func (a adapter) InsertQuery(params sql.InsertQueryParams) (sql.Query, error) {
	query, err := a.v3.InsertQuery(params.Topic, params.Msgs)
	return sql.Query(query), err
}

var errNotRead = errors.New("sqlv4: the outbox is read by the forwarder, not by a subscriber")

func (adapter) SelectQuery(sql.SelectQueryParams) (sql.Query, error) {
	return sql.Query{}, errNotRead
}

func (adapter) UnmarshalMessage(sql.UnmarshalMessageParams) (sql.Row, error) {
	return sql.Row{}, errNotRead
}

// SchemaInitializingQueries returns no queries, because package schema creates the tables.
func (adapter) SchemaInitializingQueries(sql.SchemaInitializingQueriesParams) ([]sql.Query, error) {
	return nil, nil
}

func (a adapter) SubscribeIsolationLevel() stdsql.IsolationLevel {
	return a.v3.SubscribeIsolationLevel()
}
