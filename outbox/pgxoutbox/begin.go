package pgxoutbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// session is the connection of a transaction. The transaction begins together with its
// first statement.
type session struct {
	pool    *pgxpool.Pool
	conn    *pgxpool.Conn // nil if the connection was lost before the transaction began
	pending bool          // BEGIN was not sent yet
	traced  bool          // send BEGIN separately, because the user's tracer expects each statement separately
}

func newSession(ctx context.Context, pool *pgxpool.Pool) (*session, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	return &session{pool: pool, conn: conn, pending: true, traced: conn.Conn().Config().Tracer != nil}, nil
}

// release returns the connection to the pool. The pool closes the connection if its
// transaction is still open, for instance after a panic.
func (s *session) release() {
	if s.conn != nil {
		s.conn.Release()
		s.conn = nil
	}
}

var errLost = errors.New("the connection was lost before the transaction began")

// begin sends BEGIN separately, if it was not sent yet.
func (s *session) begin(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return fmt.Errorf("pgxoutbox: %w", err)
	}
	return nil
}

// open is like begin, but does not add the name of the package to the error, because
// InTx adds it. After a restart of the server, all idle connections of the pool are
// dead. So open tries all idle connections, and then one more.
func (s *session) open(ctx context.Context) error {
	if s.conn == nil {
		return errLost
	}
	if !s.pending {
		return nil
	}
	var err error
	for range s.pool.Stat().IdleConns() + 2 {
		if s.conn.Conn().IsClosed() {
			s.release()
			if s.conn, err = s.pool.Acquire(ctx); err != nil {
				s.conn = nil
				break
			}
		}
		if _, err = s.conn.Exec(ctx, "begin"); err == nil {
			s.pending = false
			return nil
		}
		if ctx.Err() != nil || !s.conn.Conn().IsClosed() {
			break
		}
	}
	s.pending = s.conn != nil && !s.conn.Conn().IsClosed()
	return fmt.Errorf("begin: %w", err)
}

// withBegin calls the function first, which sends BEGIN together with the first
// statement of the transaction. If the transaction has not begun afterwards, withBegin
// sends BEGIN separately. This happens if the connection was dead, or if the server or
// pgx did not accept the statement. A statement that was not accepted then fails again,
// but inside the transaction. The result done is false if the caller must still execute
// the statement, because BEGIN was sent earlier or separately.
func (s *session) withBegin(ctx context.Context, first func(conn *pgx.Conn) error) (done bool, err error) {
	if s.conn == nil || !s.pending || s.traced {
		return false, s.begin(ctx)
	}
	conn := s.conn.Conn()
	err = first(conn)
	begun := err == nil || !conn.IsClosed() && conn.PgConn().TxStatus() != idle
	switch {
	case begun:
		s.pending = false
		return true, err
	case ctx.Err() != nil:
		s.pending = !conn.IsClosed() // take no other connection, because the caller may ignore the error
		return true, err
	}
	return false, s.begin(ctx)
}

// exec executes the first statement of the transaction together with BEGIN. If the
// result done is false, exec has only begun the transaction, and the caller must
// execute the statement, see withBegin. A query without arguments may contain several
// statements, so it is sent with the simple query protocol.
func (s *session) exec(ctx context.Context, query string, args []any) (tag pgconn.CommandTag, done bool, err error) {
	if special(args) {
		return tag, false, s.begin(ctx)
	}
	done, err = s.withBegin(ctx, func(conn *pgx.Conn) (err error) {
		if len(args) == 0 {
			tag, err = conn.Exec(ctx, "begin; "+query)
			return err
		}
		results, err := sendFirst(ctx, conn, query, args)
		if err == nil {
			tag, err = results.Exec()
		}
		return results.end(err)
	})
	return tag, done, err
}

// query is like exec, for a statement that returns rows.
func (s *session) query(ctx context.Context, query string, args []any) (rows pgx.Rows, done bool, err error) {
	if len(args) == 0 || special(args) {
		return nil, false, s.begin(ctx)
	}
	done, err = s.withBegin(ctx, func(conn *pgx.Conn) error {
		results, err := sendFirst(ctx, conn, query, args)
		if err == nil {
			rows, err = results.Query() //nolint:sqlclosecheck // the caller closes them
		}
		if err != nil {
			return results.end(err)
		}
		rows = &firstRows{rows, results}
		return nil
	})
	return rows, done, err
}

// special reports whether args begin with an option of pgx that a batch does not
// support.
func special(args []any) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return true
	}
	return false
}
