package cmdline_test

import (
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/cmdline"
	"github.com/watermill-once/once/internal/test/kit"
)

func newFlags() *flag.FlagSet {
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Int("number", 1, "")
	flags.Uint64("seed", 1, "")
	flags.Duration("for", 1, "")
	flags.Bool("quick", false, "")
	flags.String("out", "", "")
	return flags
}

func TestParseErrorNamesAllowedValues(t *testing.T) {
	for args, says := range map[string]string{
		"-number many":   `invalid value "many" for flag -number: must be a whole number`,
		"-seed -1":       `invalid value "-1" for flag -seed: must be a whole number from 0`,
		"-for 5":         `invalid value "5" for flag -for: must be a duration with its unit`,
		"-quick=perhaps": `invalid boolean value "perhaps" for -quick: must be true or false`,
		"-out":           `flag needs an argument: -out`,
		"-bogus":         `-bogus`,
	} {
		if err := cmdline.Parse(newFlags(), strings.Fields(args)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
	for _, arg := range []string{"-h", "-help", "--help"} {
		if err := cmdline.Parse(newFlags(), []string{arg}); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

func TestCheckNamesExtraArgumentsAndEmptyFlags(t *testing.T) {
	flags := newFlags()
	kit.OK(t, cmdline.Parse(flags, []string{"-number", "2", "-quick", "-out", "", "more", "-quick"}))
	err := cmdline.Check(flags)
	if err == nil || !strings.Contains(err.Error(), "-out is empty") || !strings.Contains(err.Error(), `argument "more"`) {
		t.Error(err)
	}
	flags = newFlags() // a default value may be empty
	kit.Check(t, errors.Join(cmdline.Parse(flags, []string{"-quick", "-number", "2"}), cmdline.Check(flags)))
}

func TestWritable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	kit.Check(t, cmdline.Writable(file))
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the new file was not removed: %v", err)
	}
	kit.OK(t, os.WriteFile(file, []byte("kept"), 0o600))
	kit.Check(t, cmdline.Writable(file))
	if content, err := os.ReadFile(file); err != nil || string(content) != "kept" {
		t.Errorf("%q, %v", content, err)
	}
	for _, path := range []string{dir, filepath.Join(file, "below"), filepath.Join(dir, "no", "file")} {
		if err := cmdline.Writable(path); err == nil {
			t.Errorf("%s is reported as writable", path)
		}
	}
}
