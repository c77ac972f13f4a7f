package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// fault is a kind of fault.
type fault struct {
	name  string
	about string

	// on names the target of the fault. Two faults at the same time must have different
	// targets.
	on string

	// alone means that no other fault may be active at the same time.
	alone bool

	// writes means that the fault has an effect only while the writers write.
	writes bool

	// strike injects the fault, keeps it active until it has had an effect, and undoes
	// it. proof describes the effect; it is empty if no effect was observed.
	strike func(ctx context.Context, s *strike) (proof string, err error)
}

// strike is one injection of a fault. Rand makes its random choices; the plan gives it
// a seed.
type strike struct {
	*world
	*rand.Rand
}

// patience is how long the test waits for an effect. It is long, because the machine
// may be busy.
const patience = 3 * time.Minute

// errNoBite reports that an injected fault had no visible effect.
var errNoBite = errors.New("did not bite")

// until waits until cond returns true. It returns errNoBite after patience. what
// describes cond in the error.
func (s *strike) until(ctx context.Context, what string, cond func() bool) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return fmt.Errorf("%w: not seen within %v: %s", errNoBite, patience, what)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// hold waits for a random time, while the fault is active.
func (s *strike) hold(ctx context.Context) {
	rest(ctx, 300*time.Millisecond+time.Duration(s.Int64N(int64(1200*time.Millisecond))))
}

// one picks a random member that has the role.
func (s *strike) one(role string) *member {
	all := s.of(role)
	return all[s.IntN(len(all))]
}

// growing returns a function that returns by how much counts() has grown since growing
// was called.
func (s *strike) growing(counts func() int64) (grown func() int64) {
	before := counts()
	return func() int64 { return counts() - before }
}

// sum returns a function that returns the sum of the proxies' counts of name.
func sum(proxies []*proxy, name string) func() int64 {
	return func() (n int64) {
		for _, p := range proxies {
			n += p.counted(name)
		}
		return n
	}
}

// exec runs a statement on a direct connection, without a proxy. It retries for up to
// patience while the database is down.
func (s *strike) exec(ctx context.Context, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, err := s.db.ExecContext(ctx, query, args...)
		if err == nil || ctx.Err() != nil {
			return err
		}
		rest(ctx, 100*time.Millisecond)
	}
}

// number returns the result of a query, or -1 if the database does not answer.
func (w *world) number(ctx context.Context, query string, args ...any) int64 {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var n int64
	if err := w.db.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return -1
	}
	return n
}
