package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// fault is a kind of fault that the test injects, such as a kill of the broker.
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

	// strike injects the fault, keeps it active until it has had an effect, and undoes it.
	// The result proof describes the effect. If no effect was observed, strike returns an
	// error.
	strike func(ctx context.Context, s *strike) (proof string, err error)
}

// strike is one injection of a fault. The field Rand makes the random choices of this
// injection. Its seed comes from the plan, so that a run can be repeated.
type strike struct {
	*world
	*rand.Rand

	during, after silence // while the fault lasted, and then; zero if they were not measured
}

// patience is how long the test waits for an effect. It is long, because on a busy
// machine an effect may come late.
const patience = 3 * time.Minute

// errNoBite means that an injected fault had no visible effect.
var errNoBite = errors.New("did not bite")

// until waits until the function cond returns true. If this takes longer than patience,
// until returns errNoBite. The text of the error contains what, which
// describes the condition.
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

// hold keeps a fault active for a random time: it waits between 0.3 and 1.5 seconds.
func (s *strike) hold(ctx context.Context) {
	rest(ctx, 300*time.Millisecond+time.Duration(s.Int64N(int64(1200*time.Millisecond))))
}

func (s *strike) pick(role string) *member {
	all := s.membersOf(role)
	return all[s.IntN(len(all))]
}

// growing calls the function counts, and returns a function. The returned function calls
// counts again, and returns by how much the count has grown.
func (s *strike) growing(counts func() int64) (grown func() int64) {
	before := counts()
	return func() int64 { return counts() - before }
}

// sum returns a function. The returned function returns how many events with the given
// name all proxies together have counted.
func sum(proxies []*proxy, name string) func() int64 {
	return func() (n int64) {
		for _, p := range proxies {
			n += p.counted(name)
		}
		return n
	}
}

// exec runs a statement on a direct connection, without a proxy. If the statement fails,
// for example because the database is down, exec tries again for up to three minutes (the
// constant patience).
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

func faults() []fault {
	var all []fault
	for _, some := range [][]fault{
		processFaults(), postgresFaults(), lockFaults(), brokerFaults(), topologyFaults(), networkFaults(), messageFaults(), handlerFaults(),
		accountFaults(), intentFaults(), pauseFaults(), consumerFaults(), serviceFaults(),
	} {
		all = append(all, some...)
	}
	return all
}
