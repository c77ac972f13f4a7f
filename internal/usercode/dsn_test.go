package usercode_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	_ "github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/usercode"
)

// The table contains texts of drivers' errors, and the expected results.
func TestPasswordsInAllFormsAreCovered(t *testing.T) {
	const secret = "canary"
	for _, test := range []struct{ text, left string }{
		{"dial postgres://u:canary@h:1/d: refused", "dial postgres"},
		{"dial postgres://u:can ary@h:1/d: refused", "h:1/d: refused"},
		{"dial postgres://u:can@ary/canary@h:1/d: refused", "h:1/d: refused"},
		{"dial postgres://:canary@h/d", "h/d"},
		{"dial postgres://u@h/d?password=canary&sslmode=disable", "postgres://u@h/d?password=***"},
		{"dial postgres://u@h/d?sslpassword=canary", "sslpassword=***"},
		{"dial postgres://u:canary@h/d?sslpassword=canary", "h/d?sslpassword=***"},
		{"cannot use host=h password=canary port=1", "host=h password=***"},
		{"cannot use host=h PASSWORD=canary", "host=h PASSWORD=***"},
		{"cannot use host=h password = canary", "host=h password = ***"},
		{"cannot use host=h password='canary'", "host=h password=***"},
		{`cannot use host=h password='can\'t canary'`, "host=h password=***"},
		{"cannot use host=h password=two canary words", "host=h password=***"},
		{"cannot use host=h password=two\ncanary words", "host=h password=***"},
		{"cannot use host=h sslpassword=canary", "host=h sslpassword=***"},
		{`{"host":"h","password":"canary"}`, `"host":"h"`},
		{"invalid DSN u:canary@tcp(h:3306)/d", "invalid DSN ***@tcp(h:3306)/d"},
		{"invalid DSN u:can@ary canary@unix(/s)/d", "@unix(/s)/d"},
		{"invalid DSN `:canary@(h)/d`", "@(h)/d`"},
		{"server=h;user id=u;pwd=canary;", "pwd=***"},
	} {
		err := usercode.HideDSN(errors.New(test.text))
		if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "ary") || !strings.Contains(err.Error(), test.left) {
			t.Errorf("%s: %v, want an error with %q", test.text, err, test.left)
		}
		if errors.Unwrap(err) != nil {
			t.Errorf("%s: Unwrap returns the driver's error", test.text)
		}
	}
}

func TestErrorsWithoutPasswordAreNotChanged(t *testing.T) {
	for _, text := range []string{
		`pq: password authentication failed for user "u"`,
		"failed to connect to `user=u database=d`: 127.0.0.1:1 (127.0.0.1): dial error: dial tcp 127.0.0.1:1: connect: connection refused",
		"Error 1045 (28000): Access denied for user 'root'@'localhost' (using password: YES)",
		`pq: role "ann@example.com" does not exist`,
		"unable to open database file: out of memory (14)",
		"dial tcp [::1]:5432: connect: connection refused",
	} {
		err := errors.New(text)
		if got := usercode.HideDSN(err); got != err { //nolint:errorlint // must be the same value
			t.Errorf("%s became %v", text, got)
		}
	}
	kit.Check(t, usercode.HideDSN(nil))
}

type state struct{ error }

func (state) SQLState() string { return "28P01" }

// Callers recognise an outage with errors.Is and errors.As, so these must find the
// hidden error. Otherwise an outage would be treated as another failure.
func TestErrorsIsFindsHiddenError(t *testing.T) {
	inner := fmt.Errorf("postgres://u:canary@h: %w: %w", driver.ErrBadConn, state{sql.ErrConnDone})
	err := usercode.HideDSN(fmt.Errorf("begin: %w", inner))
	var stater interface{ SQLState() string }
	if !errors.Is(err, driver.ErrBadConn) || !errors.As(err, &stater) || stater.SQLState() != "28P01" || errors.Is(err, sql.ErrTxDone) {
		t.Errorf("%#v", stater)
	}
	if strings.Contains(fmt.Sprintf("%v %+v %s", err, err, err), "canary") {
		t.Error(err)
	}
}

// The table contains errors of lib/pq, pgx and net/url about a data source name that
// they cannot parse.
func TestParsingErrorQuotesNothing(t *testing.T) {
	const says = "the data source name cannot be parsed (it is not shown because it may contain a password): " +
		"in a URL percent-encode user, password and database; in key=value pairs quote values with blanks"
	_, parse := url.Parse("postgres://u:canary%zz@h/d") //nolint:staticcheck // it must not be valid
	for _, err := range []error{
		parse,
		fmt.Errorf("begin: %w", parse),
		errors.New(`missing "=" after "canary" in connection info string"`),
		errors.New("cannot parse `postgres://u:xxxxx@h/d?password=canary&connect_timeout=x`: invalid connect_timeout (canary)"),
		errors.New("cannot parse `host=h password = canary`: failed"),
	} {
		if got := usercode.HideDSN(err); got.Error() != says || errors.Unwrap(got) != nil {
			t.Errorf("%v: %v", err, got)
		}
	}
	got := usercode.HideDSN(errors.New(`pq: wrong value for "port": strconv.ParseUint: parsing "canary": invalid syntax`))
	want := strings.Replace(says, "parsed", `parsed, it has a wrong value for "port"`, 1)
	if got.Error() != want {
		t.Error(got)
	}
}

// A password that is not percent-encoded or not quoted may contain any characters.
// Whatever form the data source name has, the error contains neither the beginning nor
// the end of the password.
func FuzzNoDriverErrorContainsPassword(f *testing.F) {
	for _, password := range []string{
		"", "%zz", " two", "'", `\`, "@", "/", "?", "#", "=", " port=", "\n", "`", `"`, "%",
		"' password='", "&",
	} {
		f.Add(password)
	}
	const secret = "canary17"
	f.Fuzz(func(t *testing.T, around string) {
		password := secret + around + secret
		for _, name := range []string{
			"postgres://u:" + password + "@127.0.0.1:1/d?connect_timeout=soon",
			"postgres://u@127.0.0.1:1/d?connect_timeout=soon&password=" + password,
			"host=127.0.0.1 connect_timeout=soon password=" + password,
			"host=127.0.0.1 connect_timeout=soon password='" + password,
			"host=127.0.0.1 connect_timeout=soon password = '" + password + "'",
		} {
			db, err := sql.Open("postgres", name)
			if err == nil {
				err = db.PingContext(t.Context())
				_ = db.Close()
			}
			if got := usercode.HideDSN(err); got == nil || strings.Contains(got.Error(), secret) {
				t.Errorf("%q: %v", name, got)
			}
		}
	})
}
