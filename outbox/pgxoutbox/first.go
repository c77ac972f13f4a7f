package pgxoutbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// first is the result of the first statement of a transaction, which was sent together
// with BEGIN.
type first struct {
	pgx.BatchResults

	ctx    context.Context
	conn   *pgx.Conn
	stop   func() bool   // ends the watch of the context; may be nil
	missed chan struct{} // closed when the watch has done its work
	ended  bool
}

// sendFirst sends BEGIN and a statement. If sendFirst returns an error, the caller must
// call end. Otherwise the caller must call end after it has read the result.
//
// Like pgx for a single statement, sendFirst watches ctx itself, and closes the
// connection if ctx ends. If pgx watched the context of the batch, a goroutine of pgx
// would remain after the batch.
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

// end makes the connection ready for the next statement. It returns the first error of
// the statement. If ctx has ended, the error says that this is the cause.
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

// firstRows are the rows of a statement that was sent together with BEGIN.
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

// firstRow is the row of a statement that was sent together with BEGIN.
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
