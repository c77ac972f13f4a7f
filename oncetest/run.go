package oncetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TB is what [Run] needs of a *testing.T.
type TB[T any] interface {
	testing.TB
	Run(name string, f func(T)) bool
}

// Run examines a handler, with a subtest for each fault. If the messages cannot
// be handled at all, or the effect is not the same twice without any fault, t
// fails without subtests.
//
// There are two cases for each statement of each message's transaction. One
// takes some ten milliseconds, and as long again as Reset.
func Run[T TB[T]](t T, config Config) {
	t.Helper()
	s, err := newSubject(t.Context(), config)
	if err != nil {
		t.Fatalf("oncetest: %v", err)
	}
	t.Cleanup(func() { _ = s.db.Close() })
	if err := s.refer(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.cases() {
		t.Run(c.name, func(t T) {
			t.Helper()
			err := c.run(t.Context())
			switch {
			case errors.Is(err, errDidNotCome):
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			}
		})
	}
}

// errDidNotCome says that nothing went wrong, because the transaction had fewer
// statements than before. That is well: a handler may remember what it has read.
var errDidNotCome = errors.New("there was no such statement this time")

// testCase is a subtest.
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
