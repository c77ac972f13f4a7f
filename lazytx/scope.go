package lazytx

import "strings"

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
// The parameter part must be in lower case.
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
