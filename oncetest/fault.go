package oncetest

import (
	"fmt"
	"strings"
)

// kind is the kind of a fault.
type kind int

const (
	// lost means that the connection is lost before a statement or the commit is executed.
	// The database rolls back.
	lost kind = iota + 1

	// lostAfterCommit means that the connection is lost after the commit, before the reply
	// to the commit arrives.
	lostAfterCommit

	// statementFails means that a statement fails, and the connection stays open.
	statementFails
)

// fault is a fault that is injected once, during the delivery of one message.
type fault struct {
	kind    kind
	message int // index of the message

	// statement is the number of a statement in the message's transaction. The first
	// statement is 1, and 0 means the commit.
	statement int

	of  int    // number of statements in the transaction
	sql string // text of the statement
	id  string // id of the message
}

// name returns the name of the subtest for the fault.
func (f fault) name() string {
	switch {
	case f.kind == statementFails:
		return fmt.Sprintf("statement %d of message %d fails", f.statement, f.message+1)
	case f.kind == lostAfterCommit:
		return fmt.Sprintf("lost after the commit of message %d", f.message+1)
	case f.statement == 0:
		return fmt.Sprintf("lost before the commit of message %d", f.message+1)
	default:
		return fmt.Sprintf("lost at statement %d of message %d", f.statement, f.message+1)
	}
}

// String describes the fault for an error text.
func (f fault) String() string {
	switch {
	case f.kind == statementFails:
		return fmt.Sprintf("statement %d of %d of message %q failed (%s)", f.statement, f.of, f.id, brief(f.sql))
	case f.kind == lostAfterCommit:
		return fmt.Sprintf("connection lost after the commit of message %q, before the reply, then delivered again", f.id)
	case f.statement == 0:
		return fmt.Sprintf("connection lost before the commit of message %q took effect, then delivered again", f.id)
	default:
		return fmt.Sprintf("connection lost at statement %d of %d of message %q (%s), then delivered again",
			f.statement, f.of, f.id, brief(f.sql))
	}
}

// faults returns all faults for a message whose transaction executes the given
// statements.
func faults(index int, id string, statements []string) []fault {
	var all []fault
	add := func(k kind, statement int, sql string) {
		all = append(all, fault{kind: k, message: index, statement: statement, of: len(statements), sql: sql, id: id})
	}
	for i, sql := range statements {
		add(lost, i+1, sql)
		add(statementFails, i+1, sql)
	}
	add(lost, 0, "")
	add(lostAfterCommit, 0, "")
	return all
}

// brief returns the beginning of a statement, on one line.
func brief(sql string) string {
	return shorten(strings.Join(strings.Fields(sql), " "), 60)
}

// shorten returns the first limit characters of text, followed by "..." if text is
// longer.
func shorten(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "..."
	}
	return text
}
