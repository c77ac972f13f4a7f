package lazytx

import "strings"

// endings are the first words of all statements that can end a transaction: COMMIT,
// END, ROLLBACK, ABORT and PREPARE TRANSACTION. Functions and procedures cannot end the
// transaction of their caller.
var endings = []string{"commit", "end", "rollback", "abort", "prepare"}

// endsTransaction reports whether query contains one of these words. It may also report
// true for a statement that does not end the transaction, such as CASE ... END. This
// only costs a check.
func endsTransaction(query string) bool {
	for start := 0; start < len(query); {
		end := start
		for end < len(query) && isLetter(query[end]) {
			end++
		}
		for _, word := range endings {
			if len(word) == end-start && strings.EqualFold(word, query[start:end]) {
				return true
			}
		}
		start = end + 1
	}
	return false
}

func isLetter(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || '0' <= c && c <= '9' || c >= 0x80
}
