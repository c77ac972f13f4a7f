package pgxoutbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// session is the connection of a transaction, which begins together with its first statement.
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

// The pool closes a connection whose transaction is still open, for instance after a panic.
func (s *session) release() {
	if s.conn != nil {
		s.conn.Release()
		s.conn = nil
	}
}

var errLost = errors.New("the connection was lost before the transaction began")

func (s *session) begin(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return fmt.Errorf("pgxoutbox: %w", err)
	}
	return nil
}

// open tries all idle connections, because after a restart of the server they are dead, and then
// one more. InTx adds the name of the package to the error.
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

// withBegin calls first, which sends BEGIN together with the first statement. If the connection was
// dead, or the server or pgx did not accept the statement, it sends BEGIN separately; then the
// statement fails again, but inside the transaction. If done is false, the caller must still
// execute the statement.
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

// exec executes the first statement together with BEGIN, or only begins, see withBegin. A query
// without arguments may contain several statements, so it is sent with the simple query protocol.
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

// A batch does not support the options of pgx.
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

type first struct {
	pgx.BatchResults

	ctx    context.Context
	conn   *pgx.Conn
	stop   func() bool   // ends the watch of the context; may be nil
	missed chan struct{} // closed when the watch has done its work
	ended  bool
}

// sendFirst sends BEGIN and a statement. The caller must call end, after it has read the result, or
// at once after an error.
//
// Like pgx for a single statement, it watches ctx itself, and closes the connection if ctx ends. A
// goroutine of pgx that watched the batch would outlive it.
func sendFirst(ctx context.Context, conn *pgx.Conn, query string, args []any) (*first, error) {
	f := &first{BatchResults: failedBatch{ctx.Err()}, ctx: ctx, conn: conn, missed: make(chan struct{})}
	if err := ctx.Err(); err != nil {
		return f, err
	}
	if ctx.Done() != nil {
		wire := conn.PgConn().Conn()
		f.stop = context.AfterFunc(ctx, func() {
			defer close(f.missed)
			_ = wire.SetDeadline(time.Unix(1, 0)) // a time in the past
		})
	}
	batch := &pgx.Batch{}
	batch.Queue("begin")
	batch.Queue(query, args...)
	f.BatchResults = conn.SendBatch(context.WithoutCancel(ctx), batch)
	_, err := f.Exec()
	return f, err
}

// end makes the connection ready for the next statement, and returns the first error, with the end
// of ctx as the cause.
func (f *first) end(err error) error {
	if f.ended {
		return err
	}
	f.ended = true
	if closeErr := f.Close(); closeErr != nil {
		_ = f.Close() // after an error of the rows, the first Close only returns that error
		if err == nil {
			err = closeErr
		}
	}
	if f.stop != nil && !f.stop() {
		<-f.missed
		if !f.conn.IsClosed() {
			_ = f.conn.PgConn().Conn().SetDeadline(time.Time{})
		}
	}
	return f.caused(err)
}

func (f *first) caused(err error) error {
	if ended := f.ctx.Err(); err != nil && ended != nil && f.conn.IsClosed() {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}

type firstRows struct {
	pgx.Rows

	first *first
}

// Next implements pgx.Rows.
func (r *firstRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Scan implements pgx.Rows.
func (r *firstRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil { // an error of Scan has closed the rows
		r.Close()
	}
	return err
}

// Values implements pgx.Rows.
func (r *firstRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil { // an error of Values has closed the rows
		r.Close()
	}
	return values, err
}

// Err implements pgx.Rows.
func (r *firstRows) Err() error { return r.first.caused(r.Rows.Err()) }

// Close implements pgx.Rows.
func (r *firstRows) Close() {
	r.Rows.Close()
	_ = r.first.end(nil)
}

type firstRow struct{ rows pgx.Rows }

// Scan implements pgx.Row.
func (r firstRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

type failedBatch struct{ err error }

func (f failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.err }
func (f failedBatch) Query() (pgx.Rows, error)         { return failedRows(f), f.err }
func (f failedBatch) QueryRow() pgx.Row                { return failedRows(f) }
func (f failedBatch) Close() error                     { return f.err }

// Tx returns nil. pgx.BatchResults has this method since pgx 5.12.
func (failedBatch) Tx() pgx.Tx { return nil }

type failedRows struct{ err error }

func (failedRows) Close()                                       {}
func (f failedRows) Err() error                                 { return f.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (f failedRows) Scan(...any) error                          { return f.err }
func (f failedRows) Values() ([]any, error)                     { return nil, f.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }

// TypeMap returns nil. pgx.Rows has this method since pgx 5.11.
func (failedRows) TypeMap() *pgtype.Map { return nil }
