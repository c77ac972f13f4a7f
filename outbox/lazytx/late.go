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

// text returns one query string with all statements. The string begins with
// before and ends with after.
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

// failed returns the error for the caller. err is the error that occurred
// when the statements were sent, alone or with COMMIT.
func (l *late) failed(err error) error {
	if len(l.queries) > 0 && (dialect.Undeployed(err) || dialect.Unstorable(err)) {
		return l.queries[0].Failed(err)
	}
	return err
}

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
	if err := c.mark(ctx, scope); err != nil {
		return err
	}
	c.mayHaveEnded = c.mayHaveEnded || scope.ends
	c.late.atOnce = c.late.atOnce || scope.ends || scope.savepoint
	if scope.harmless() {
		return nil
	}
	return c.sendNow(ctx)
}

// mark marks the transaction before a statement that may end it. A failed transaction
// accepts no mark, so mark is also called before a statement that may create a savepoint,
// because ROLLBACK TO can repair a failed transaction later. A mark that was not accepted
// is missing at COMMIT, and the check then fails.
func (c *conn) mark(ctx context.Context, s scope) error {
	if c.check == nil || c.check.Mark == "" || c.marked || !s.ends && !s.savepoint && !c.preparedEnd {
		return nil
	}
	if err := c.beginNow(ctx); err != nil {
		return err
	}
	_, err := c.postgres.ExecContext(ctx, c.check.Mark, nil)
	c.marked = err == nil
	return nil
}

// checkText returns the statement that fails if the transaction has ended, or "" if no
// statement can have ended it.
func (c *conn) checkText() string {
	if c.check != nil && (c.mayHaveEnded || c.preparedEnd) {
		return c.check.SQL + separator
	}
	return ""
}

func (c *conn) sendNow(ctx context.Context) error {
	if len(c.late.queries) == 0 {
		return nil
	}
	_, err := c.postgres.ExecContext(ctx, c.late.text(c.begin+c.checkText(), ""), nil)
	if c.begin != "" {
		err = c.begun(err)
	}
	if err != nil {
		err = c.late.failed(err)
	}
	c.late.queries, c.late.size = nil, 0
	return err
}

// scope describes what a statement may do that matters for the transaction, or for the
// statements that are delayed until COMMIT. The fields are guesses from the words of
// the statement. A field must not be false by mistake. A field that is true by mistake
// only costs a round trip or a check.
type scope struct {
	ends      bool // may end the transaction
	savepoint bool // may create, release or roll back to a savepoint
	looks     bool // may read the outbox, or change the meaning of a later statement
}

func (s scope) harmless() bool { return s == scope{} }

// Words at the beginning of a statement.
var (
	// All statements that can end a transaction: COMMIT, END, ROLLBACK, ABORT and
	// PREPARE TRANSACTION. Functions and procedures cannot end the transaction of their
	// caller. ROLLBACK TO SAVEPOINT begins with the same word.
	endings = []string{"commit", "end", "rollback", "abort", "prepare"}

	// All other statements that use savepoints.
	savepoints = []string{"savepoint", "release"}

	// Statements that can change the role, the search path, the constraints or the mode of
	// the transaction.
	settings = []string{"set", "reset", "discard"}
)

// looking contains words that make a statement suspicious, wherever they are in the
// statement. Such a statement may change the settings of the transaction, or execute a
// statement that was prepared with PREPARE.
var looking = []string{"set_config", "pg_settings", "execute"}

// outboxTable is the end of the name of each outbox table.
const outboxTable = "outbox"

// scopeOf returns the scope of query, which may contain several statements.
func scopeOf(query string) (s scope) {
	query = withoutLeadingComments(query)
	// After a comment in the middle, a statement may begin anywhere. Such a comment may
	// also be part of a string, so it cannot be skipped.
	anywhere := strings.Contains(query, "--") || strings.Contains(query, "/*")
	begins := true
	for start := 0; start < len(query); {
		if c := query[start]; !isLetter(c) {
			begins = c == ';' || begins && c <= ' '
			start++
			continue
		}
		end := start
		for end < len(query) && isLetter(query[end]) {
			end++
		}
		word := query[start:end]
		if begins || anywhere {
			s.ends = s.ends || isOneOf(word, endings)
			s.savepoint = s.savepoint || isOneOf(word, savepoints)
			s.looks = s.looks || isOneOf(word, settings)
		}
		s.looks = s.looks || isOneOf(word, looking) || containsFold(word, outboxTable)
		begins = false
		start = end
	}
	return s
}

// withoutLeadingComments removes white space and comments from the beginning of a
// query. Generated queries often begin with a comment.
func withoutLeadingComments(query string) string {
	for {
		query = strings.TrimLeft(query, " \t\r\n\f\v")
		var end string
		switch {
		case strings.HasPrefix(query, "--"):
			end = "\n"
		case strings.HasPrefix(query, "/*"):
			end = "*/"
		default:
			return query
		}
		comment, rest, found := strings.Cut(query[2:], end)
		if !found || strings.Contains(comment, "/*") && end == "*/" { // comments of this kind can be nested
			return query
		}
		query = rest
	}
}

func isOneOf(word string, words []string) bool {
	for _, w := range words {
		if len(w) == len(word) && strings.EqualFold(w, word) {
			return true
		}
	}
	return false
}

// containsFold reports whether the string word contains the string part, ignoring case.
// part must be in lower case.
func containsFold(word, part string) bool {
	for n := 0; n+len(part) <= len(word); n++ {
		// Comparing one letter first matters: each statement is searched.
		if word[n]|0x20 == part[0] && strings.EqualFold(word[n:n+len(part)], part) {
			return true
		}
	}
	return false
}

func isLetter(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || '0' <= c && c <= '9' || c >= 0x80
}
