package lazytx

import (
	"context"
	"database/sql/driver"
	"time"
)

// tx is the transaction that is open on a connection.
type tx struct {
	driver.Tx

	conn  *conn
	check string // statement that fails if a statement has ended the transaction; may be ""
}

// Commit implements driver.Tx.
func (t tx) Commit() error {
	defer t.conn.ended()
	if t.conn.begin != "" && len(t.conn.late.queries) == 0 {
		return nil
	}
	err := t.commit()
	if err == nil {
		t.conn.alive = time.Now()
	}
	return err
}

// commit sends a delayed BEGIN, the waiting statements, and COMMIT in one query string.
func (t tx) commit() error {
	c := t.conn
	before := c.begin
	if t.check != "" && (c.mayHaveEnded || c.preparedEnd) {
		before += t.check + separator
	}
	after := "COMMIT"
	if len(c.late.queries) > 0 {
		after = separator + after
	} else if before == "" {
		return t.Tx.Commit()
	}
	_, err := c.postgres.ExecContext(context.Background(), c.late.text(before, after), nil)
	if err != nil {
		// If a statement before COMMIT has failed, the transaction is still open, and
		// must be rolled back. If COMMIT itself has failed, lib/pq notices in Rollback
		// that no transaction is open, and the pool drops the connection.
		_ = t.Tx.Rollback()
		return c.late.failed(err)
	}
	return nil
}

// Rollback implements driver.Tx.
func (t tx) Rollback() error {
	defer t.conn.ended()
	if t.conn.begin != "" {
		return nil
	}
	return t.Tx.Rollback()
}

// ended drops a delayed BEGIN and the statements that were not sent.
func (c *conn) ended() {
	c.begin = ""
	c.mayDelay = false
	c.late.end()
}
