package oncetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TB contains the methods of *testing.T that [Run] and [RunOrder] need.
type TB[T any] interface {
	testing.TB
	Run(name string, f func(T)) bool
}

// Run tests a handler. It runs a subtest for each case. If a message cannot be handled
// although no fault is injected, or if two runs without faults give different results, t
// fails before any subtest.
//
// There are two cases for each statement in the transaction of each message, and a few
// more. A case takes about ten milliseconds, in addition to the time that Reset takes.
func Run[T TB[T]](t T, config Config) {
	t.Helper()
	s, err := newSubject(t.Context(), config)
	if err != nil {
		t.Fatalf("oncetest: %v", err)
	}
	t.Cleanup(func() { _ = s.db.Close() })
	if err := s.makeReference(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.cases() {
		t.Run(c.name, func(t T) {
			t.Helper()
			err := c.run(t.Context())
			switch {
			case errors.Is(err, errNotInjected):
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			}
		})
	}
}

// errNotInjected means that a fault could not be injected, because the transaction had
// fewer statements than in the reference. The case is then skipped and does not fail,
// because the handler may have a good reason: it may cache rows that it has read.
var errNotInjected = errors.New("fewer statements ran this time: the case is skipped")

// testCase is a case that runs as a subtest.
type testCase struct {
	name string
	run  func(ctx context.Context) error
}

func (s *subject) cases() []testCase {
	all := []testCase{
		{"twice in a row", s.twiceInARow},
		{"twice at once", s.twiceAtOnce},
	}
	for _, f := range s.faults {
		all = append(all, testCase{f.name(), func(ctx context.Context) error { return s.withFault(ctx, f) }})
	}
	if s.config.Ordered {
		return all
	}
	for i := range len(s.config.Messages) - 1 {
		all = append(all, testCase{
			fmt.Sprintf("messages %d and %d swapped", i+1, i+2),
			func(ctx context.Context) error { return s.swapped(ctx, i) },
		})
	}
	return all
}
