package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"

	"github.com/watermill-once/once/examples/orders/outside"
	"github.com/watermill-once/once/examples/orders/service"
)

// part is a service that runs in this process. Without -services 2 there is one part,
// which runs both orders and payments.
type part struct {
	names     []string
	database  service.Database
	outside   service.Database // tables of the bank and the mail provider
	addr      string
	addrGiven bool

	service  *service.Service
	listener net.Listener
}

// console returns the address of the console.
func (p *part) console() string { return fmt.Sprintf("http://%s/console/", p.listener.Addr()) }

// databases returns the parts with their databases, and creates the tables. Orders is
// the last part, so that the queues of payments exist before the first order is placed.
func (a *app) databases(ctx context.Context) (parts []*part, err error) {
	switch {
	case a.options.db == "":
		parts, err = a.onSQLite()
	case a.options.services == 2:
		parts, err = a.onTwoDatabases(ctx)
	default:
		parts, err = a.onPostgres()
	}
	for _, p := range parts {
		if err == nil {
			err = p.database.Migrate(ctx, p.names...)
		}
		if err == nil {
			err = p.outside.Apply(ctx, outside.Tables)
		}
	}
	if err != nil && a.options.db != "" {
		err = fmt.Errorf("-db: %w", err)
	}
	return parts, err
}

// onOneDatabase returns one part. The part runs both services, or only the service that
// -only names.
func (a *app) onOneDatabase(database, outside service.Database) []*part {
	names := []string{service.Orders, service.Payments}
	if a.options.only != "" {
		names = []string{a.options.only}
	}
	return []*part{{names: names, database: database, outside: outside, addr: a.options.addr, addrGiven: a.options.addrGiven}}
}

func (a *app) onPostgres() ([]*part, error) {
	database, err := service.Postgres(a.options.db, a.options.schema)
	return a.onOneDatabase(database, database), err
}

// open builds the service of a part. The tables of the bank and of the mail provider
// are in pool.
func (p *part) open(transport service.Transport, pool *sql.DB, config service.Config) (err error) {
	config.Services = p.names
	if p.service, err = service.New(p.database, transport, outside.Companies(pool), config); err != nil {
		return err
	}
	if p.listener, err = listen(p.addr, p.addrGiven); err != nil {
		return errors.Join(err, p.service.Close())
	}
	return nil
}

// serve runs the services of all parts until ctx ends or one of them fails. Then it stops
// all services.
func (a *app) serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(a.parts))
	for _, p := range a.parts {
		go func() { ended <- p.service.Run(ctx, p.listener) }()
	}
	var errs []error
	for range a.parts {
		errs = append(errs, <-ended)
		stop()
	}
	return errors.Join(errs...)
}
