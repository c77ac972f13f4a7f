package main

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

const secretPassword = "canary-p@ss/word"

// Whatever goes wrong, and however much is logged: the passwords are not told.
func TestTrap60_PasswordsAreNotTold(t *testing.T) {
	broker := testkit.Rabbit(t)
	user := broker.Name("reader")
	broker.Ctl(t, "add_user", user, secretPassword)
	defer broker.Ctl(t, "delete_user", user) // not when the test's context has ended
	broker.Ctl(t, "set_permissions", "--vhost", broker.VHost, user, ".*", ".*", ".*")

	dsn, amqp := withUser(t, testkit.Postgres(t).DSN, ""), withUser(t, broker.URL, user)
	status, stdout, stderr := command(t, "-db", dsn, "-amqp", amqp, "-namespace", broker.Name("orders"),
		"-addr", "127.0.0.1:0", "-orders", "20", "-faults", "-exit", "-json", "-v", "trace")
	if status != statusOK || strings.Count(stderr, "\n") < 100 {
		t.Errorf("status %d: %s", status, stdout)
	}
	tellsNoSecrets(t, stdout, stderr)

	for _, args := range [][]string{
		{"-db", dsn + "&lock_timeout=never"},
		{"-db", strings.Replace(dsn, "@", "@nowhere.invalid.", 1)},
		{"-db", "host=127.0.0.1 port=1 user=u password='" + secretPassword + "' dbname=d sslmode=disable"},
		{"-db", "host=127.0.0.1 port=one user=u password='" + secretPassword + "'"},
		{"-db", dsn, "-amqp", amqp + "-elsewhere"},
		{"-db", dsn, "-amqp", strings.Replace(amqp, user, "nobody", 1)},
	} {
		status, stdout, stderr := command(t, append(args, "-addr", "127.0.0.1:0", "-exit", "-json", "-v", "trace")...)
		if status == statusOK || stderr == "" {
			t.Errorf("status %d: %s", status, stderr)
		}
		tellsNoSecrets(t, stdout, stderr)
	}
}

// What a driver says may quote either form of a password, alone or in its URL.
func TestTrap60_RedactionKnowsEveryForm(t *testing.T) {
	dsn, amqp := withUser(t, "postgres://h/d", "u"), withUser(t, "amqp://h/", "u")
	pairs := "host=h user=u password='" + secretPassword + "'"
	for _, o := range []options{{db: dsn, amqp: amqp}, {db: pairs}} {
		for _, text := range []string{
			dsn, amqp, "cannot parse " + dsn + `: and "` + amqp + `"`, "password " + secretPassword + " is wrong",
			"password " + url.QueryEscape(secretPassword) + " is wrong", pairs, "password='" + secretPassword + "'",
		} {
			tellsNoSecrets(t, o.redact(errors.New(text)))
		}
	}
}

// withUser returns an address with the password, and a user if one is given.
func withUser(t *testing.T, address, user string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("no URL")
	}
	if user == "" {
		user = parsed.User.Username()
	}
	parsed.User = url.UserPassword(user, secretPassword)
	return parsed.String()
}

func tellsNoSecrets(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "canary") && !strings.Contains(line, "canary_test.go") {
				t.Errorf("told: %.400s", line)
			}
		}
	}
}
