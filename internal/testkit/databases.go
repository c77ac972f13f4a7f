package testkit

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/lib/pq"
)

const (
	// tooManyConnections is the error code of a server that has no connection left.
	tooManyConnections = "53300"

	// missing is the error code for a database that does not exist.
	missing = "3D000"
)

// postgres creates and drops databases on a server.
type postgres struct {
	dsn   string
	admin *sql.DB

	// present is a session that has a lock while this process uses the server's databases.
	present *sql.Conn

	mu       sync.Mutex
	fresh    string   // the state of a new database
	free     []string // empty databases
	prepared []prepared
}

func newPostgres(ctx context.Context, dsn string) (*postgres, error) {
	admin, err := openPostgres(dsn)
	if err != nil {
		return nil, err
	}
	p := &postgres{dsn: dsn, admin: admin}
	if err := p.enter(ctx); err != nil {
		return nil, errors.Join(err, admin.Close())
	}
	return p, nil
}

// create creates a database from template0. template1 may have connections, which make
// the copy fail. template0 accepts no connections. Several tests may create databases
// at the same time, so create repeats the statement while the server is busy.
func (p *postgres) create(ctx context.Context, name, options string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := p.admin.ExecContext(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"+options)
		if !busy(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (p *postgres) drop(ctx context.Context, name string) error {
	_, err := p.admin.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

func busy(err error) bool {
	var refused *pq.Error
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Code {
	case "55006", // the template is in use
		tooManyConnections,
		"57P03": // the server is starting
		return true
	}
	return false
}
