package recipes

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// PgxTx returns the transaction tx of a handler as a pgx.Tx. The *sql.DB of the consumer
// must use pgx (pgx/v5/stdlib), with or without package lazytx. The handler may use both
// transactions in turn: they are one transaction on one connection. Do not use the pgx.Tx
// after the handler has returned, and do not call its methods Commit and Rollback. PgxTx
// takes one round trip.
func PgxTx(ctx context.Context, tx *sql.Tx) (pgx.Tx, error) {
	var r rewriter
	_, err := tx.ExecContext(ctx, unseen, &r)
	switch {
	case r.err != nil:
		return nil, r.err
	case r.tx == nil:
		return nil, fmt.Errorf("no pgx.Tx: the *sql.DB must be opened with pgx/v5/stdlib: %w", err)
	}
	return r.tx, nil
}

// unseen is not sent to PostgreSQL. Package lazytx reads it, and expects a statement that
// may end the transaction. From then on it delays nothing, because it does not see the
// statements of the pgx.Tx.
const unseen = "END"

var errNotSent = errors.New("nothing to send")

// rewriter is an argument of a statement. pgx calls RewriteQuery with the connection of
// the transaction before it sends the statement.
type rewriter struct {
	tx  pgx.Tx
	err error
}

// RewriteQuery implements pgx.QueryRewriter. It returns an error, so that pgx does not
// send the statement.
func (r *rewriter) RewriteQuery(ctx context.Context, conn *pgx.Conn, _ string, _ []any) (string, []any, error) {
	r.tx, r.err = conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: ";"}) // the transaction has begun already
	return "", nil, errNotSent
}
