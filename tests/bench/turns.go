package main

import (
	"context"
	"fmt"
	"runtime"
)

// measurement is made once a run and has a value for each of its series.
type measurement struct {
	into    []*series
	measure func(ctx context.Context) ([]float64, error)
}

// single is a measurement with one series.
func single(into *series, measure func(ctx context.Context) (float64, error)) measurement {
	return measurement{[]*series{into}, func(ctx context.Context) ([]float64, error) {
		value, err := measure(ctx)
		return []float64{value}, err
	}}
}

// turns makes the measurements one after another, and so all runs: what
// disturbs the machine for a while disturbs all of them.
func (b *bench) turns(ctx context.Context, measurements ...measurement) error {
	for n := range b.runs {
		for _, m := range measurements {
			runtime.GC() // what the one before has left is not this one's
			values, err := m.measure(ctx)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", m.into[0].what, err)
			}
			for i, value := range values {
				s := m.into[i]
				s.values = append(s.values, value)
				fmt.Fprintf(b.progress, "run %d of %d: %-70s %8s %s\n", n+1, b.runs, s.what, number(value), s.unit)
			}
		}
	}
	return nil
}
