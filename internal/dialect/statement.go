package dialect

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Statement is a query with statements before it, in one round trip to PostgreSQL, because the
// arguments are written into the text. With separate arguments, lib/pq takes two for each.
type Statement struct {
	query string   // text with parameters
	sql   string   // the same text if the database is SQLite, otherwise ""
	parts []string // text between the arguments, for PostgreSQL
	order []int    // index of the argument after each part
	size  int      // size of parts in bytes
	name  string   // name of the prepared query, for PostgreSQL

	prelude, template string // arguments of the method Statement
}

// Statement replaces the placeholders of query, see [Dialect.SQL]. prelude contains statements
// without arguments, except for SQLite. Line breaks in constants are lost, because the indentation
// of lines is removed.
func (d Dialect) Statement(prelude, query string) Statement {
	template := query
	query = d.SQL(query)
	withParameters := query
	if d.SQLite() {
		return Statement{query: query, sql: query}
	}
	if prelude != "" {
		query = prelude + "; " + query
	}
	lines := strings.Split(strings.TrimSpace(query), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	query = strings.Join(lines, " ")
	digest := sha256.Sum256([]byte(withParameters))
	s := Statement{
		query: withParameters, size: len(query), name: "once_" + hex.EncodeToString(digest[:12]), prelude: prelude, template: template,
	}
	end := 0
	for _, match := range parameter.FindAllStringSubmatchIndex(query, -1) {
		n, _ := strconv.Atoi(query[match[2]:match[3]]) // the pattern matches only digits
		s.parts = append(s.parts, query[end:match[0]])
		s.order = append(s.order, n-1)
		end = match[1]
	}
	s.parts = append(s.parts, query[end:])
	return s
}

// Query returns the query with parameters, without the prelude.
func (s Statement) Query() string { return s.query }

// Exec returns the result of the query. Arguments are string, []byte, int64 or nil.
func (s Statement) Exec(ctx context.Context, tx *sql.Tx, args ...any) (sql.Result, error) {
	if s.sql != "" {
		return tx.ExecContext(ctx, s.sql, args...)
	}
	text, err := s.text(args)
	if err != nil {
		return nil, err
	}
	return tx.ExecContext(ctx, text)
}

// Get scans the only column of the first row into dest, or returns sql.ErrNoRows. See Exec.
func (s Statement) Get(ctx context.Context, tx *sql.Tx, dest any, args ...any) error {
	return s.GetAll(ctx, tx, []any{dest}, args...)
}

// GetAll is like Get, for a row with several columns.
func (s Statement) GetAll(ctx context.Context, tx *sql.Tx, dest []any, args ...any) error {
	if s.sql != "" {
		return tx.QueryRowContext(ctx, s.sql, args...).Scan(dest...)
	}
	text, err := s.text(args)
	if err != nil {
		return err
	}
	return tx.QueryRowContext(ctx, text).Scan(dest...)
}

func (s Statement) call(args []any) (string, error) {
	b := []byte("EXECUTE " + s.name)
	if s.prelude != "" {
		b = []byte(s.prelude + "; EXECUTE " + s.name)
	}
	var err error
	for i, arg := range args {
		b = append(b, "(,"[min(i, 1)])
		if b, err = appendConstant(b, arg); err != nil {
			return "", err
		}
	}
	if len(args) > 0 {
		b = append(b, ')')
	}
	return string(b), nil
}

func (s Statement) text(args []any) (string, error) {
	const usual = 64 // usual size of an argument in bytes
	b := make([]byte, 0, s.size+usual*len(s.order))
	var err error
	for i, n := range s.order {
		b = append(b, s.parts[i]...)
		if b, err = appendConstant(b, args[n]); err != nil {
			return "", err
		}
	}
	return string(append(b, s.parts[len(s.order)]...)), nil
}

func appendConstant(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case nil:
		return append(b, "NULL"...), nil
	case int64: // quoted, so that the context determines the type, and a minus cannot begin a comment
		b = append(b, '\'')
		return append(strconv.AppendInt(b, v, 10), '\''), nil
	case []byte:
		return AppendBytes(b, v), nil
	case string:
		return AppendText(b, v), nil
	}
	return nil, fmt.Errorf("a value of type %T cannot be written into a statement", value)
}

// AppendBytes appends v as a constant of PostgreSQL's type bytea.
func AppendBytes(b, v []byte) []byte {
	b = append(b, `E'\\x`...)
	return append(hex.AppendEncode(b, v), '\'')
}

// AppendText appends v as a text constant of PostgreSQL. All characters with a special meaning are
// escaped, so no value can end it, whatever standard_conforming_strings and client_encoding are.
func AppendText(b []byte, v string) []byte {
	if allHarmless(v) { // the server reads it faster without E
		b = append(b, '\'')
		return append(append(b, v...), '\'')
	}
	b = append(b, `E'`...)
	for start := 0; start < len(v); {
		end := start
		for end < len(v) && harmless[v[end]] {
			end++
		}
		b = append(b, v[start:end]...)
		if end == len(v) {
			break
		}
		r, size := utf8.DecodeRuneInString(v[end:])
		if r == utf8.RuneError && size == 1 { // invalid UTF-8, which the server must refuse
			b = fmt.Appendf(b, `\x%02x`, v[end])
		} else {
			b = fmt.Appendf(b, `\U%08x`, r)
		}
		start = end + size
	}
	return append(b, '\'')
}

func allHarmless(v string) bool {
	for i := range len(v) {
		if !harmless[v[i]] {
			return false
		}
	}
	return true
}

// harmless are the bytes that need no escape: printable ASCII without quotes, backslashes, $ and ?,
// which some proxies treat as parameters.
var harmless = func() (set [256]bool) {
	for c := ' '; c <= '~'; c++ {
		set[c] = !strings.ContainsRune("'\\$?", c)
	}
	return set
}()
