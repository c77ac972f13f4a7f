package lazytx

import (
	"context"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
)

// late contains the statements of the open transaction that will be sent together with
// COMMIT. These are the INSERT statements of package outbox.
type late struct {
	queries []lateQuery
	size    int // total size of the queries, in bytes

	// atOnce means that statements are sent immediately, because a savepoint may be open,
	// or because a statement may have ended the transaction.
	atOnce bool
}

type lateQuery struct {
	*dialect.Late

	text string
}

// maxLate is the maximum size of the statements that wait for COMMIT, in bytes.
const maxLate = 1 << 20

// add adds a statement. If the statement has the same head (see dialect.Late) as the
// previous one, the two become one statement.
func (l *late) add(query string, q *dialect.Late) {
	l.size += len(query)
	if n := len(l.queries); n > 0 {
		if last := &l.queries[n-1]; last.text[:last.Head] == query[:q.Head] {
			last.text += "," + query[q.Head:]
			return
		}
	}
	l.queries = append(l.queries, lateQuery{q, query})
}

// separator stands between two statements that are sent in one query string.
const separator = "; "

// text returns one query string with all statements. The string begins with the
// parameter before and ends with the parameter after.
func (l *late) text(before, after string) string {
	var b strings.Builder
	b.Grow(len(before) + l.size + len(l.queries)*len(separator) + len(after))
	b.WriteString(before)
	for i, q := range l.queries {
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(q.text)
	}
	b.WriteString(after)
	return b.String()
}

// failed returns the error for the caller. The parameter err is the error that occurred
// when the statements were sent, alone or with COMMIT.
func (l *late) failed(err error) error {
	if len(l.queries) > 0 && dialect.Undeployed(err) {
		return l.queries[0].Failed(err)
	}
	return err
}

// end drops the statements.
func (l *late) end() { *l = late{} }

// sendLate delays a statement of package outbox: the statement waits, and is sent
// together with COMMIT. If the statement must not wait, sendLate sends it immediately,
// together with the statements that already wait. For any other statement, sendLate
// does nothing and returns false.
func (c *conn) sendLate(ctx context.Context, query string) (done bool, err error) {
	q := dialect.LateOf(ctx)
	if q == nil {
		return false, nil
	}
	now := !c.mayDelay || c.late.atOnce || c.preparedLook || c.late.size+len(query) > maxLate
	c.late.add(query, q)
	if now {
		err = c.sendNow(ctx)
	}
	return true, err
}

// beforeStatement is called before each statement of a transaction. It sends the waiting
// statements if the new statement could notice that they were not sent, or could change
// their meaning.
func (c *conn) beforeStatement(ctx context.Context, query string) error {
	scope := scopeOf(query)
	c.mayHaveEnded = c.mayHaveEnded || scope.ends
	c.late.atOnce = c.late.atOnce || scope.ends || scope.savepoint
	if scope.harmless() {
		return nil
	}
	return c.sendNow(ctx)
}

// sendNow sends the statements that wait for COMMIT.
func (c *conn) sendNow(ctx context.Context) error {
	if len(c.late.queries) == 0 {
		return nil
	}
	_, err := c.postgres.ExecContext(ctx, c.late.text(c.begin, ""), nil)
	if c.begin != "" {
		err = c.begun(err)
	}
	if err != nil {
		err = c.late.failed(err)
	}
	c.late.queries, c.late.size = nil, 0
	return err
}
