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

// fromEnv adds the names of the variables to the help.
func fromEnv(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		f := flags.Lookup(name)
		variable := "ONCE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		f.Annotations = map[string][]string{envKey: {variable}}
		f.Usage += " (" + variable + ")"
	}
}

func envName(f *pflag.Flag) string {
	return strings.Join(f.Annotations[envKey], "")
}

// The errors of a value say which values are allowed.
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

func oneOf(target *string, allowed ...string) *value {
	return &value{kind: "name", text: *target, set: func(text string) error {
		if !slices.Contains(allowed, text) {
			return errors.New("must be one of " + strings.Join(allowed, ", "))
		}
		*target = text
		return nil
	}}
}

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

// parseDuration also accepts days, such as 7d. The result must be positive.
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

// moment accepts a time, or a duration before now.
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

// nameList separates names by commas, and may be repeated. A name with a comma or a quote is in
// double quotes, which are doubled in it. All other characters are kept.
func nameList(target *[]string) *value {
	return &value{kind: "names", set: func(text string) error {
		names, err := parseNames(text)
		*target = append(*target, names...)
		return err
	}}
}

func parseNames(text string) (names []string, err error) {
	for {
		name, rest, more := strings.Cut(text, ",")
		if strings.HasPrefix(text, `"`) {
			if name, rest, more, err = parseQuoted(text); err != nil {
				return nil, err
			}
		} else if strings.Contains(name, `"`) {
			return nil, fmt.Errorf("the name %q has a quote: put the name in double quotes, and write two quotes for a quote in it", name)
		}
		if name == "" {
			return nil, errors.New("a name is empty")
		}
		names = append(names, name)
		if !more {
			return names, nil
		}
		text = rest
	}
}

func parseQuoted(text string) (name, rest string, more bool, err error) {
	var b strings.Builder
	for at := 1; at < len(text); at++ {
		if text[at] != '"' {
			b.WriteByte(text[at])
			continue
		}
		after := text[at+1:]
		switch {
		case strings.HasPrefix(after, `"`):
			b.WriteByte('"')
			at++
		case after == "":
			return b.String(), "", false, nil
		case after[0] == ',':
			return b.String(), after[1:], true, nil
		default:
			return "", "", false, fmt.Errorf("%q follows a closing quote: put a comma between names", after)
		}
	}
	return "", "", false, fmt.Errorf("the closing quote of %s is missing", text)
}

// A message that is named twice is changed, and counted, once.
func parseIDs(args []string) ([]int64, error) {
	var ids []int64
	known := map[int64]bool{}
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, usagef("%q is no ID: give the number in the column ID of the list", arg)
		}
		if !known[id] {
			known[id] = true
			ids = append(ids, id)
		}
	}
	return ids, nil
}
