package rabbit

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"dial tcp 127.0.0.1:5672: connection refused":   "dial tcp 127.0.0.1:5672: connection refused",
		"see amqp://user:secret@host:5672/vhost now":    "see amqp://***@host:5672/vhost now",
		`parse "amqp://u:se/cr@et@host/": bad`:          `parse "amqp://***@host/": bad`,
		"amqps://user@host and amqp://a:b@other failed": "amqps://***@host and amqp://***@other failed",
	} {
		if got := redactText(text); got != want {
			t.Errorf("redactText(%q) = %q, want %q", text, got, want)
		}
	}

	harmless := errors.New("harmless")
	if !errors.Is(redact(harmless), harmless) || redact(nil) != nil {
		t.Error("an error without credentials was replaced")
	}
	secret := &url.Error{Op: "parse", URL: "amqp://user:secret@host:port", Err: harmless}
	redacted := redact(fmt.Errorf("connect: %w", secret))
	if inner, ok := errors.AsType[*url.Error](redacted); ok {
		t.Errorf("unwrapping shows the credentials: %v", inner)
	}
}

// FuzzRedact checks that redactText removes the password from every URL that can be used
// to connect.
func FuzzRedact(f *testing.F) {
	f.Add("amqp", "user", "secret", "host", "vhost")
	f.Add("amqps", "", "p@ss//word", "h:5671", "%2f")
	f.Add("amqp", "u", `a"b c`, "[::1]:5672", "a?heartbeat=1")
	f.Fuzz(func(t *testing.T, scheme, user, password, host, path string) {
		uri := scheme + "://" + user + ":" + password + "@" + host + "/" + path
		if _, err := amqp.ParseURI(uri); err != nil || len(password) < 3 {
			return
		}
		parsed, err := url.Parse(uri)
		if err != nil || parsed.User == nil {
			return
		}
		if _, set := parsed.User.Password(); !set {
			return
		}
		userinfo := parsed.User.String() + "@"
		for _, text := range []string{
			uri, parsed.String(), fmt.Sprintf("dial %q: refused", uri), fmt.Sprintf("dial %s: at %s", uri, parsed),
		} {
			if safe := redactText(text); strings.Contains(safe, userinfo) || strings.Contains(safe, user+":"+password+"@") {
				t.Errorf("redacted text %q of %q has credentials", safe, text)
			}
		}
	})
}
