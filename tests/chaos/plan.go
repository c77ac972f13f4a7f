package main

import (
	"iter"
	"math/rand/v2"
)

// step is a list of one or two faults that are injected at the same time.
type step struct {
	faults []fault
	seeds  []uint64 // seed of each fault
}

// plan returns an endless plan. In the first round every fault is injected alone. Later
// rounds combine two faults where that is possible. The same seed and faults give the
// same plan.
func plan(seed uint64, faults []fault) iter.Seq[step] {
	return func(yield func(step) bool) {
		random := rand.New(rand.NewPCG(seed, 0))
		for round := 0; ; round++ {
			left := make([]fault, len(faults))
			for i, n := range random.Perm(len(faults)) {
				left[i] = faults[n]
			}
			for len(left) > 0 {
				s := step{faults: left[:1:1]}
				left = left[1:]
				if round > 0 {
					s, left = s.pair(left)
				}
				for range s.faults {
					s.seeds = append(s.seeds, random.Uint64())
				}
				if !yield(s) {
					return
				}
			}
		}
	}
}

// pair adds a second fault to the step: the first of the remaining faults that can be
// combined with the step's fault. It returns the step, and the faults that still
// remain.
func (s step) pair(left []fault) (step, []fault) {
	for i, other := range left {
		if first := s.faults[0]; first.alone || other.alone || first.on == other.on {
			continue
		}
		s.faults = append(s.faults, other)
		rest := append([]fault{}, left[:i]...)
		return s, append(rest, left[i+1:]...)
	}
	return s, left
}
