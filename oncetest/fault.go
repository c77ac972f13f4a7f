package oncetest

import (
	"fmt"
	"strings"
)

// kind is what goes wrong.
type kind int

const (
	// lost: the connection is gone before the statement, or the commit, is
	// carried out. The database rolls back.
	lost kind = iota + 1

	// answerLost: the commit is carried out, and the connection gone before the
	// answer comes.
	answerLost

	// refused: the statement fails, and the connection lives on.
	refused
)

// fault is something that goes wrong once with one message.
type fault struct {
	kind    kind
	message int // its index

	// statement counts from 1 in the transaction of the message; 0 is the
	// commit.
	statement int

	of  int    // how many statements there are
	sql string // the statement
	id  string // the message's
}

// name is the name of its subtest.
func (f fault) name() string {
	switch {
	case f.kind == refused:
		return fmt.Sprintf("statement %d of message %d fails", f.statement, f.message+1)
	case f.kind == answerLost:
		return fmt.Sprintf("lost after the commit of message %d", f.message+1)
	case f.statement == 0:
		return fmt.Sprintf("lost before the commit of message %d", f.message+1)
	default:
		return fmt.Sprintf("lost at statement %d of message %d", f.statement, f.message+1)
	}
}

// String says what happened.
func (f fault) String() string {
	switch {
	case f.kind == refused:
		return fmt.Sprintf("statement %d of %d of message %q failed (%s)", f.statement, f.of, f.id, brief(f.sql))
	case f.kind == answerLost:
		return fmt.Sprintf("connection lost after the commit of message %q, before the answer, then delivered again", f.id)
	case f.statement == 0:
		return fmt.Sprintf("connection lost before the commit of message %q took effect, then delivered again", f.id)
	default:
		return fmt.Sprintf("connection lost at statement %d of %d of message %q (%s), then delivered again",
			f.statement, f.of, f.id, brief(f.sql))
	}
}

// faults are all that can happen to a message whose transaction consists of
// these statements.
func faults(index int, id string, statements []string) []fault {
	var all []fault
	add := func(k kind, statement int, sql string) {
		all = append(all, fault{kind: k, message: index, statement: statement, of: len(statements), sql: sql, id: id})
	}
	for i, sql := range statements {
		add(lost, i+1, sql)
		add(refused, i+1, sql)
	}
	add(lost, 0, "")
	add(answerLost, 0, "")
	return all
}

// brief is the beginning of a statement, on one line.
func brief(sql string) string {
	return shorten(strings.Join(strings.Fields(sql), " "), 60)
}

// shorten cuts what is too long to be read.
func shorten(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}
