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

	// on is what it is done to. Two at the same time are never on the same.
	on string

	// alone says that it needs the others to be quiet.
	alone bool

	// writes says that it bites only while writers write.
	writes bool

	// strike injects it, holds it until it has bitten, and heals. The proof
	// says what was seen of it; without one, it did not bite.
	strike func(ctx context.Context, s *strike) (proof string, err error)
}

// strike is one injection of a fault. All that is left to chance comes from its
// seed.
type strike struct {
	*world
	*rand.Rand
}

// patience is for what must happen, on a machine that has other things to do.
const patience = 3 * time.Minute

// errNoBite says that a fault was injected and nothing was seen of it.
var errNoBite = errors.New("did not bite")

// until waits until cond is true: what names it.
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

// hold lasts a while.
func (s *strike) hold(ctx context.Context) {
	rest(ctx, 300*time.Millisecond+time.Duration(s.Int64N(int64(1200*time.Millisecond))))
}

// one picks a member of a role.
func (s *strike) one(role string) *member {
	all := s.of(role)
	return all[s.IntN(len(all))]
}

// growing remembers a count. What it returns says by how much it has grown.
func (s *strike) growing(counts func() int64) (grown func() int64) {
	before := counts()
	return func() int64 { return counts() - before }
}

// sum adds what proxies have counted.
func sum(proxies []*proxy, name string) func() int64 {
	return func() (n int64) {
		for _, p := range proxies {
			n += p.counted(name)
		}
		return n
	}
}

// exec runs statements past the proxies. It tries again while the database is
// away.
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

// number returns a query's, or -1 while the database does not answer.
func (w *world) number(ctx context.Context, query string, args ...any) int64 {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var n int64
	if err := w.db.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return -1
	}
	return n
}
