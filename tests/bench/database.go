package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once/lazytx"
)

// connections is the size of each pool. A pool keeps all its connections open.
const connections = 16

func open(dsn string) (*sql.DB, error) {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return nil, err
	}
	return sized(db), nil
}

// openLazily returns a pool that uses lazytx: BEGIN is sent with the first statement.
func openLazily(dsn string) (*sql.DB, error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sized(sql.OpenDB(lazytx.Connector(connector))), nil
}

// openStd returns two pools with pgx's driver, the second one with lazytx.
func openStd(dsn string) (plain, lazy *sql.DB, err error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	return sized(stdlib.OpenDB(*config)), sized(sql.OpenDB(lazytx.Connector(stdlib.GetConnector(*config)))), nil
}

func sized(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

// database is a new database for one measurement.
type database struct {
	*sql.DB

	lazy    *sql.DB // a second pool, see openLazily
	std     *sql.DB // a third pool, with pgx's driver
	lazyStd *sql.DB // a fourth pool, with pgx's driver and lazytx
	dsn     string
	name    string
	admin   *sql.DB
}

func newDatabase(ctx context.Context, dsn string) (*database, error) {
	address, err := url.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("PG_DSN is no URL: %w", err)
	}
	admin, err := open(dsn)
	if err != nil {
		return nil, err
	}
	d := &database{name: "once_bench_" + uuid.NewString(), admin: admin}
	if _, err := admin.ExecContext(context.WithoutCancel(ctx), `CREATE DATABASE "`+d.name+`" TEMPLATE template0`); err != nil {
		return nil, errors.Join(err, admin.Close())
	}
	address.Path = "/" + d.name
	d.dsn = address.String()
	if d.DB, err = open(d.dsn); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.lazy, err = openLazily(d.dsn); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.std, d.lazyStd, err = openStd(d.dsn); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close closes the pools and drops the database.
func (d *database) Close() error {
	defer d.admin.Close()
	for _, pool := range []*sql.DB{d.DB, d.lazy, d.std, d.lazyStd} {
		if pool != nil {
			_ = pool.Close()
		}
	}
	if _, err := d.admin.Exec(`DROP DATABASE "` + d.name + `" WITH (FORCE)`); err != nil {
		return fmt.Errorf("database %s is left: %w", d.name, err)
	}
	return nil
}
