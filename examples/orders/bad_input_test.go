package main

import (
	"errors"
	"net/url"
	"strings"
	"testing"
)

// Whatever is given as -db, its password is not in the text of an error.
func FuzzRedact(f *testing.F) {
	f.Add("user", "secret", "host/db", "cannot reach ")
	f.Add("", "p%40ss", "h:5432/d?sslmode=disable", "\"")
	f.Add("u", "a//b@c", "[::1]/d", "//")
	f.Fuzz(func(t *testing.T, user, password, rest, around string) {
		dsn := "postgres://" + user + ":" + password + "@" + rest
		parsed, err := url.Parse(dsn)
		if err != nil || parsed.User == nil || len(password) < 3 {
			return
		}
		if _, set := parsed.User.Password(); !set {
			return
		}
		text := options{db: dsn}.redact(errors.New(around + dsn + around))
		if strings.Contains(text, user+":"+password+"@") {
			t.Errorf("%q is left of %q", text, dsn)
		}
	})
}
