package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

const envKey = "once_env"

// fromEnv allows the flags with these names to be set by environment variables, too. It
// adds the names of the variables to the help.
func fromEnv(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		f := flags.Lookup(name)
		variable := "ONCE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		f.Annotations = map[string][]string{envKey: {variable}}
		f.Usage += " (" + variable + ")"
	}
}

// envName returns the name of the environment variable for a flag, or "".
func envName(f *pflag.Flag) string {
	return strings.Join(f.Annotations[envKey], "")
}

// value is the value of a flag. Its errors say which values are allowed.
type value struct {
	kind string
	text string
	set  func(text string) error
}

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return v.kind }

func (v *value) Set(text string) error {
	if err := v.set(text); err != nil {
		return err
	}
	v.text = text
	return nil
}

// oneOf returns a flag value that must be one of the allowed names.
func oneOf(target *string, allowed ...string) *value {
	return &value{kind: "name", text: *target, set: func(text string) error {
		if !slices.Contains(allowed, text) {
			return errors.New("must be one of " + strings.Join(allowed, ", "))
		}
		*target = text
		return nil
	}}
}

// atLeast returns a flag value that is a whole number of at least the parameter least.
func atLeast(target *int, least int) *value {
	v := &value{kind: "number", set: func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < least {
			return fmt.Errorf("must be a whole number of at least %d", least)
		}
		*target = n
		return nil
	}}
	if *target != 0 {
		v.text = strconv.Itoa(*target)
	}
	return v
}

// duration returns a flag value that is a positive duration.
func duration(target *time.Duration) *value {
	v := &value{kind: "duration", set: func(text string) error {
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		*target = d
		return nil
	}}
	if *target != 0 {
		v.text = age(*target)
	}
	return v
}

// parseDuration works like time.ParseDuration, but also accepts days, such as 7d. The
// result must be positive.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var n int
		n, err = strconv.Atoi(days)
		d = time.Duration(n) * 24 * time.Hour
		if n > 36500 {
			err = strconv.ErrRange
		}
	}
	if err != nil || d <= 0 {
		return 0, errors.New("must be a duration above zero with its unit, as 90s, 2h or 7d")
	}
	return d, nil
}

// moment returns a flag value for a time. The user enters a time, or a duration that is
// subtracted from the current time.
func moment(target *time.Time) *value {
	return &value{kind: "time", set: func(text string) error {
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			*target = at
			return nil
		}
		ago, err := parseDuration(text)
		if err != nil {
			return errors.New("must be a time as 2026-05-01T12:00:00Z, or a duration before now as 2h or 7d")
		}
		*target = time.Now().Add(-ago)
		return nil
	}}
}

// parseIDs parses args, which are IDs of rows.
func parseIDs(args []string) ([]int64, error) {
	var ids []int64
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, usagef("%q is no ID: give the number in the column ID of the list", arg)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
