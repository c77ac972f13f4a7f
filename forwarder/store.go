package forwarder

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/dialect"
)

// store is the tables as the forwarder sees them.
type store struct {
	db      *sql.DB
	dialect dialect.Dialect
	sql     queries
	owner   string
}

func newStore(db *sql.DB, d dialect.Dialect) *store {
	host, _ := os.Hostname() // for people who look at the table; the rest makes it unique
	return &store{db: db, dialect: d, sql: newQueries(d), owner: host + " " + uuid.NewString()}
}

func (s *store) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return s.checked(ctx, s.dialect.Read(ctx, s.db, work))
}

func (s *store) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return s.checked(ctx, s.dialect.Write(ctx, s.db, work))
}

// checked throws a connection away that leads to a server which has become a
// replica: the address may lead to the new primary by now, but an established
// connection stays where it is and fails for ever.
func (s *store) checked(ctx context.Context, err error) error {
	const readOnly = "25006"
	if dialect.State(err) != readOnly {
		return err
	}
	conn, failed := s.db.Conn(ctx) // the pool gives the one that was used last
	if failed != nil {
		return err
	}
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
	return err
}

// lease takes the slots that are free and renews those that are owned. It
// returns all that are owned now.
func (s *store) lease(ctx context.Context, length time.Duration) ([]int64, error) {
	var slots []int64
	err := s.write(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, s.sql.lease, s.owner, length.Milliseconds())
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var slot int64
			if err := rows.Scan(&slot); err != nil {
				return err
			}
			slots = append(slots, slot)
		}
		return rows.Err()
	})
	return slots, err
}

// release lets others have the slots at once.
func (s *store) release(ctx context.Context) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.sql.release, s.owner)
		return err
	})
}

// tidy removes holds whose head is gone.
func (s *store) tidy(ctx context.Context) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.sql.tidy)
		return err
	})
}
