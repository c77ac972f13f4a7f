package stock

import (
	"database/sql"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql4 "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/sqlv4"
)

// The functions below are the code of docs/from-stock.md.

func _(tx *sql.Tx, logger watermill.LoggerAdapter) (err error) {
	publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{
		SchemaAdapter: outbox.SchemaAdapter(), // before: wsql.DefaultPostgreSQLSchema{}
	}, logger)
	_ = publisher
	return err
}

func _(tx *sql.Tx, logger watermill.LoggerAdapter) (err error) {
	publisher, err := wsql4.NewPublisher(wsql4.TxFromStdSQL(tx), wsql4.PublisherConfig{
		SchemaAdapter: sqlv4.SchemaAdapter(), // before: wsql4.DefaultPostgreSQLSchema{}
	}, logger)
	_ = publisher
	return err
}
