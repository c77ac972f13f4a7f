package parked

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/lib/pq"
)

func TestErrorTypeIsThatOfTheInnermostError(t *testing.T) {
	t.Parallel()
	wrapped := fmt.Errorf("b: %w", fmt.Errorf("a: %w", &LargeError{}))
	for err, want := range map[error]string{
		io.EOF:                "*errors.errorString",
		wrapped:               "*parked.LargeError",
		errors.Join(io.EOF):   "*errors.joinError",
		knownError{"x", "*T"}: "*T",
		fmt.Errorf("a: %w", knownError{"x", "*T"}): "*T",
	} {
		if got := errorType(err); got != want {
			t.Errorf("the type of %q is %s, want %s", err, got, want)
		}
	}
}

// A text is shortened only as far as necessary, and never within a character.
func TestCleanKeepsAsMuchAsTheColumnStores(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"abü", 4, "abü"},
		{"abü", 3, "ab"},
		{"üü", 3, "ü"},
		{"ü", 1, ""},
		{"a\x00b\xffc", 20, "a\uFFFDb\uFFFDc"},
	} {
		if got := Clean(c.text, c.limit); got != c.want {
			t.Errorf("Clean(%q, %d) is %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}

// If the encoding of the database cannot store a text, only characters outside of ASCII
// are replaced, and only in strings.
func TestTextOutsideOfASCIIIsEscaped(t *testing.T) {
	t.Parallel()
	got := inASCII("a\x7f", "\u0080日", 7, []byte("日"))
	want := []any{"a\x7f", "<U+0080><U+65E5>", 7}
	if !slices.Equal(got[:3], want) || string(got[3].([]byte)) != "日" {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNameThatCannotBeStoredIsRefused(t *testing.T) {
	t.Parallel()
	if err := CheckName(strings.Repeat("x", 255)); err != nil {
		t.Error(err)
	}
	for _, name := range []string{strings.Repeat("x", 256), "a\x00", "a\xff"} {
		if err := CheckName(name); err == nil || !strings.Contains(err.Error(), "longer than 255 bytes, or no text") {
			t.Errorf("%.10q: %v", name, err)
		}
	}
}

// A text is stored in ASCII only if the encoding of the database cannot store it
// unchanged.
func TestTextThatCannotBeStoredIsStoredInASCII(t *testing.T) {
	t.Parallel()
	unstorable := &pq.Error{Code: "22P05"} // untranslatable_character
	for name, c := range map[string]struct {
		errs []error
		want string
	}{
		"it can be stored":     {[]error{nil}, "日"},
		"it cannot":            {[]error{unstorable, nil}, "日 <U+65E5>"},
		"another failure":      {[]error{io.EOF}, "日"},
		"it fails in any form": {[]error{unstorable, unstorable}, "日 <U+65E5>"},
	} {
		var stored []string
		err := withASCIIFallback(func(encode encoder) error {
			stored = append(stored, encode("日")[0].(string))
			return c.errs[len(stored)-1]
		})
		if got := strings.Join(stored, " "); got != c.want || err != c.errs[len(c.errs)-1] { //nolint:errorlint // exactly this error
			t.Errorf("%s: stored %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// Fingerprint may ignore only the parts of an error text that differ between two
// occurrences of one fault.
func TestFingerprintIgnoresOnlyWhatVaries(t *testing.T) {
	t.Parallel()
	one := Fingerprint("c", "r", "T", `order 17: 'x' is "y" at 0xff, 550e8400-e29b-41d4-a716-446655440000`)
	if want := "9fd80eaee259311e"; one != want { // stored fingerprints are compared with those of later versions
		t.Errorf("the fingerprint is %s, want %s", one, want)
	}
	if same := Fingerprint("c", "r", "T", `order 4: 'z' is "" at 0x1, 6ba7b810-9dad-11d1-80b4-00c04fd430c8`); same != one {
		t.Error("two occurrences of one fault differ")
	}
	for _, other := range []string{
		Fingerprint("d", "r", "T", `order 17: 'x' is "y" at 0xff, 550e8400-e29b-41d4-a716-446655440000`),
		Fingerprint("c", "s", "T", `order 17: 'x' is "y" at 0xff, 550e8400-e29b-41d4-a716-446655440000`),
		Fingerprint("c", "r", "U", `order 17: 'x' is "y" at 0xff, 550e8400-e29b-41d4-a716-446655440000`),
		Fingerprint("c", "r", "T", `item 17: 'x' is "y" at 0xff, 550e8400-e29b-41d4-a716-446655440000`),
	} {
		if other == one {
			t.Error("another fault has the same fingerprint")
		}
	}
}
