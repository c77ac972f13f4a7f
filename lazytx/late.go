package lazytx

import (
	"context"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
)

// late holds the statements of the open transaction that are sent together with COMMIT:
// the INSERT statements of package outbox.
type late struct {
	queries []lateQuery
	size    int // size of the queries in bytes

	// atOnce says that statements are sent at once, because a savepoint may be open, or
	// because a statement may have ended the transaction.
	atOnce bool
}

type lateQuery struct {
	*dialect.Late

	text string
}

// maxLate limits the size of the statements that wait for COMMIT.
const maxLate = 1 << 20

// add adds a statement. If it begins as the previous one, the two become one statement.
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

// separator stands between the statements of a text.
const separator = "; "

// text returns all statements as one text, between before and after.
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

// failed returns the error for the caller if sending the statements, or COMMIT with
// them, has failed with err.
func (l *late) failed(err error) error {
	if len(l.queries) > 0 && dialect.Undeployed(err) {
		return l.queries[0].Failed(err)
	}
	return err
}

// end forgets the statements.
func (l *late) end() { *l = late{} }

// sendLate keeps a statement of package outbox for COMMIT. It returns false for other
// statements. If the statement must be sent at once, it is sent with those before it.
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

// before is called before each statement of a transaction. If the statement could
// notice that others were not sent yet, or could change their meaning, these are sent.
func (c *conn) before(ctx context.Context, query string) error {
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
