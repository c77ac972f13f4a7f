package cmdline

import (
	"errors"
	"flag"
	"fmt"
	"time"
)

// Parse parses args. It returns flag.ErrHelp, or an error that names the first
// invalid flag and the allowed values. Call flags.SetOutput(io.Discard) first, so that
// package flag does not print the error, too.
func Parse(flags *flag.FlagSet, args []string) error {
	flags.VisitAll(func(f *flag.Flag) { f.Value = value{f.Value} })
	// PrintDefaults needs the original values to know the types of flags.
	defer flags.VisitAll(func(f *flag.Flag) { f.Value = f.Value.(value).Value })
	return flags.Parse(args)
}

// Check returns an error for arguments that are not flags, and for flags with an empty
// value. An empty value may come from a shell variable that is not set.
func Check(flags *flag.FlagSet) error {
	var errs []error
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q: use flags only", flags.Arg(0)))
	}
	flags.Visit(func(f *flag.Flag) {
		if f.DefValue == "" && f.Value.String() == "" {
			errs = append(errs, fmt.Errorf("-%s is empty: give it a value, or leave it out", f.Name))
		}
	})
	return errors.Join(errs...)
}

// value is a flag.Value whose errors name the allowed values.
type value struct{ flag.Value }

func (v value) Set(text string) error {
	err := v.Value.Set(text)
	getter, ok := v.Value.(flag.Getter)
	if err == nil || !ok {
		return err
	}
	switch getter.Get().(type) {
	case bool:
		return errors.New("must be true or false")
	case int:
		return errors.New("must be a whole number")
	case uint64:
		return errors.New("must be a whole number from 0 to 18446744073709551615")
	case time.Duration:
		return errors.New("must be a duration with its unit, as 90s or 2h30m")
	}
	return err
}

func (v value) IsBoolFlag() bool {
	b, ok := v.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}
