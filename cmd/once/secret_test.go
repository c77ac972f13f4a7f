package main

import (
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// No output contains a password, whatever form the address has and whatever fails.
func TestPasswordsAreNotShown(t *testing.T) {
	t.Parallel()
	testkit.Postgres(t)
	const secret = "c4nary/pass word"
	for _, dsn := range []string{
		"postgres://ann:c4nary%2Fpass%20word@127.0.0.1:1/shop?sslmode=disable",
		"postgres://ann:c4nary%zz@127.0.0.1:1/shop",
		"postgres://ann@127.0.0.1:1/shop?password=c4nary&sslmode=bogus",
		"host=127.0.0.1 port=1 user=ann password='c4nary/pass word' sslmode=disable",
		"host=127.0.0.1 port=x user=ann password=c4nary",
		"host=127.0.0.1 user=ann password=c4nary more words",
		"mysql://ann:c4nary@h/d",
		"c4nary",
		"file:///no/such/dir/x.db?password=c4nary",
	} {
		s := &shell{T: t, env: map[string]string{"ONCE_DSN": dsn, "ONCE_AMQP_URL": "amqp://ann:c4nary@127.0.0.1:1/"}}
		for _, command := range [][]string{{"status"}, {"migrate", "up"}, {"doctor"}, {"forward", "--listen", "127.0.0.1:0"}} {
			got := s.run(t.Context(), command...)
			if got.code != exitFailed && got.code != exitUsage {
				t.Errorf("%s: once %v: exit code %d", dsn, command, got.code)
			}
			for _, part := range []string{secret, "c4nary"} {
				if text := got.stdout + got.stderr; strings.Contains(text, part) {
					t.Errorf("%s: once %v shows the password:\n%s", dsn, command, text)
				}
			}
		}
	}
}

func TestHide(t *testing.T) {
	a := &app{settings: settings{dsn: "host=h password='two words'", amqpURL: "amqp://ann:pa%2Fss@h/"}}
	for text, want := range map[string]string{
		"login with two words":           "login with ***",
		"pa/ss and pa%2Fss":              "*** and ***",
		"dial amqp://bob:x@h/: refused":  "dial amqp://***@h/: refused",
		"set it to amqp://user@host/ or": "set it to amqp://user@host/ or",
	} {
		if got := a.hide(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
