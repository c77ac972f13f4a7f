package rabbit

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// No password of a URL that can be dialled is left in the text of an error.
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
				t.Errorf("%q is left of %q", safe, text)
			}
		}
	})
}
