package main

import (
	"errors"
	"flag"
	"time"
)

// explained wraps the value of a flag. Its errors name the allowed values.
type explained struct{ flag.Value }

func (e explained) Set(text string) error {
	err := e.Value.Set(text)
	getter, ok := e.Value.(flag.Getter)
	if err == nil || !ok {
		return err
	}
	switch getter.Get().(type) {
	case bool:
		return errors.New("must be true or false")
	case int:
		return errors.New("must be a whole number")
	case time.Duration:
		return errors.New("must be a duration with its unit, as 90s or 2m")
	}
	return err
}

// IsBoolFlag reports whether the flag needs no value.
func (e explained) IsBoolFlag() bool {
	b, ok := e.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}
