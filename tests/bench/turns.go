package main

import (
	"context"
	"fmt"
	"runtime"
)

// measurement runs once per run and returns a value for each of its series.
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

// turns alternates between the measurements in each run, so that a temporary
// disturbance of the machine affects all of them.
func (b *bench) turns(ctx context.Context, measurements ...measurement) error {
	for n := range b.runs {
		for _, m := range measurements {
			runtime.GC() // the garbage of the previous measurement must not slow down this one
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
