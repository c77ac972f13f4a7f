package service

import (
	_ "embed"
	"errors"
	"fmt"

	"github.com/lib/pq"

	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/schema"
)

//go:embed tables_orders_postgres.sql
var postgresOrders string

//go:embed tables_payments_postgres.sql
var postgresPayments string

// Postgres returns the database at dsn, which is a URL or a list of key=value pairs.
// All tables are in the schema named schemaName. [Database.Migrate] creates the schema.
func Postgres(dsn, schemaName string) (Database, error) {
	tables := schema.Config{Dialect: schema.PostgreSQL, Schema: schemaName}
	if err := tables.Validate(); err != nil {
		return Database{}, err
	}
	config, err := pq.NewConfig(dsn)
	if err != nil {
		// err may contain the password.
		return Database{}, errors.New("service: the DSN of PostgreSQL cannot be parsed: it must be a URL or key=value pairs")
	}
	if config.Runtime == nil {
		config.Runtime = map[string]string{}
	}
	config.Runtime["search_path"] = `"` + schemaName + `"` // Validate has refused quotes
	connector, err := pq.NewConnectorConfig(config)
	if err != nil {
		return Database{}, fmt.Errorf("service: %w", err)
	}
	return Database{
		Tables:     tables,
		connector:  lazytx.Connector(connector),
		statements: map[string]string{Orders: postgresOrders, Payments: postgresPayments},
		// Without this lock, two instances collide in PostgreSQL's catalogue, in spite
		// of IF NOT EXISTS.
		lock: `SELECT pg_advisory_xact_lock(hashtext('orders service: tables'))`,
	}, nil
}
