package pgxoutbox

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// failedBatch is the result of a batch that was not sent.
type failedBatch struct{ err error }

func (f failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.err }
func (f failedBatch) Query() (pgx.Rows, error)         { return failedRows(f), f.err }
func (f failedBatch) QueryRow() pgx.Row                { return failedRows(f) }
func (f failedBatch) Close() error                     { return f.err }

// Tx returns nil. pgx.BatchResults has this method since pgx 5.12.
func (failedBatch) Tx() pgx.Tx { return nil }

// failedRows is the result of a statement that returns rows and was not sent.
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
