package lazytx

import (
	"context"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
)

// late contains the INSERT statements of package outbox that will be sent together with COMMIT.
type late struct {
	queries []lateQuery
	size    int // total size of the queries, in bytes

	// atOnce: a savepoint may be open, or a statement may have ended the transaction.
	atOnce bool
}

type lateQuery struct {
	*dialect.Late

	text string
}

const maxLate = 1 << 20

// A statement with the head of the previous one (see dialect.Late) continues it.
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

const separator = "; "

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

// err occurred when the statements were sent, alone or with COMMIT.
func (l *late) failed(err error) error {
	if len(l.queries) > 0 && (dialect.Undeployed(err) || dialect.Unstorable(err)) {
		return l.queries[0].Failed(err)
	}
	return err
}

func (l *late) end() { *l = late{} }

// sendLate delays a statement of package outbox until COMMIT, or sends it with those that wait. It
// returns false for any other statement.
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

// beforeStatement sends the waiting statements if the new one could notice that they were not sent,
// or change their meaning.
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

// mark marks the transaction before a statement that may end it, or create a savepoint: a failed
// transaction accepts no mark, and ROLLBACK TO can repair it. The mark is then missing at COMMIT,
// and the check fails.
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

// checkText returns the check, or "" if no statement can have ended the transaction.
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

// scope guesses from the words of a statement what it may do. A field must not be false by mistake;
// one that is true by mistake costs a round trip or a check.
type scope struct {
	ends      bool // may end the transaction
	savepoint bool // may create, release or roll back to a savepoint
	looks     bool // may read the outbox, or change the meaning of a later statement
}

func (s scope) harmless() bool { return s == scope{} }

var (
	// All statements that can end a transaction (PREPARE TRANSACTION, and ROLLBACK TO SAVEPOINT,
	// which cannot). Functions and procedures cannot end that of their caller.
	endings = []string{"commit", "end", "rollback", "abort", "prepare"}

	// All others that use savepoints.
	savepoints = []string{"savepoint", "release"}

	// Statements that can change role, search path, constraints or mode.
	settings = []string{"set", "reset", "discard"}
)

// looking are words that may change settings, or execute a prepared statement, wherever they are.
var looking = []string{"set_config", "pg_settings", "execute"}

const outboxTable = "outbox"

// query may contain several statements.
func scopeOf(query string) (s scope) {
	query = withoutLeadingComments(query)
	// After a comment in the middle, which may be in a string, a statement may begin anywhere.
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

// Generated queries often begin with a comment.
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

// part must be in lower case.
func containsFold(word, part string) bool {
	for n := 0; n+len(part) <= len(word); n++ {
		// This matters: each statement is searched.
		if word[n]|0x20 == part[0] && strings.EqualFold(word[n:n+len(part)], part) {
			return true
		}
	}
	return false
}

func isLetter(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || '0' <= c && c <= '9' || c >= 0x80
}
