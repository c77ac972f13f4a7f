package main

import (
	"errors"
	"net/url"
	"strings"
	"testing"
)

// A driver may quote a password alone or as a part of its URL, percent-encoded or not.
// redact removes all these forms.
func TestRedactKnowsEveryForm(t *testing.T) {
	t.Parallel()
	const password = "canary-p@ss/word"
	encoded := url.UserPassword("u", password).String()
	dsn, amqp := "postgres://"+encoded+"@h/d", "amqp://"+encoded+"@h/"
	pairs := "host=h user=u password='" + password + "'"
	for _, o := range []options{{db: dsn, amqp: amqp}, {db: pairs}} {
		for _, text := range []string{
			dsn, amqp, "cannot parse " + dsn + `: and "` + amqp + `"`, "password " + password + " is wrong",
			"password " + url.QueryEscape(password) + " is wrong", pairs, "password='" + password + "'",
		} {
			if got := o.redact(errors.New(text)); strings.Contains(got, "canary") {
				t.Errorf("%q is left of %q", got, text)
			}
		}
	}
}

// redact removes the user and the password of -db, no matter which text surrounds them.
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
