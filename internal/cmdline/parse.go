package cmdline

import (
	"errors"
	"flag"
	"fmt"
	"time"
)

// Parse returns flag.ErrHelp, or an error about the first thing that cannot be
// read, with what is allowed. Flags are expected to print nothing themselves.
func Parse(flags *flag.FlagSet, args []string) error {
	flags.VisitAll(func(f *flag.Flag) { f.Value = value{f.Value} })
	// PrintDefaults knows a flag's type by its value.
	defer flags.VisitAll(func(f *flag.Flag) { f.Value = f.Value.(value).Value }) //nolint:forcetypeassert // it was made above
	return flags.Parse(args)
}

// Check names the arguments that are no flags, and the flags that were given
// with nothing in them, as with a shell's variable that is not set: to go on as
// if they had not been given would not be what was meant.
func Check(flags *flag.FlagSet) error {
	var errs []error
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q: there are only flags", flags.Arg(0)))
	}
	flags.Visit(func(f *flag.Flag) {
		if f.DefValue == "" && f.Value.String() == "" {
			errs = append(errs, fmt.Errorf("-%s is empty: give it a value, or leave it out", f.Name))
		}
	})
	return errors.Join(errs...)
}

// value is one whose errors say what is allowed.
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

// IsBoolFlag says that it can be given without a value.
func (v value) IsBoolFlag() bool {
	b, ok := v.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}
