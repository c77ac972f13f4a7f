package main

import (
	"context"
	"fmt"
	"runtime"
)

// measurement is run several times. Each run adds one value to each series in the field
// into.
type measurement struct {
	into    []*series
	measure func(ctx context.Context) ([]float64, error)
}

// single returns a measurement that has one series.
func single(into *series, measure func(ctx context.Context) (float64, error)) measurement {
	return measurement{[]*series{into}, func(ctx context.Context) ([]float64, error) {
		value, err := measure(ctx)
		return []float64{value}, err
	}}
}

// turns runs every measurement once, then every measurement once more, and so on for
// b.runs rounds. So a temporary disturbance of the machine affects all measurements.
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
