package rabbit

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
)

type limits struct {
	set         func(value int)
	least, most int // most is 0 if there is no limit
}

func (l limits) check(t *testing.T, name string, validate func() error) {
	t.Helper()
	try := func(value int, valid bool) {
		t.Helper()
		l.set(value)
		if err := validate(); valid != (err == nil) || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%s = %d: %v", name, value, err)
		}
	}
	try(l.least-1, false)
	if l.most > 0 {
		try(l.most+1, false)
		try(l.most, true)
	}
	try(l.least, true)
}

// The documented defaults and limits must be the same as in the code.
func TestPublisherConfigHasTheDocumentedDefaultsAndLimits(t *testing.T) {
	t.Parallel()
	config := amqp.NewDurablePubSubConfig("amqp://broker", nil)
	config.Connection.Reconnect = &amqp.ReconnectConfig{BackoffInitialInterval: time.Second / 2, BackoffMaxInterval: time.Minute}
	topology, c := PublisherConfig{}.withDefaults(config)
	c.Logger = nil
	if want := (PublisherConfig{
		Window: 1024, WindowBytes: 16 << 20, ConfirmTimeout: 30 * time.Second, ReadyTimeout: 5 * time.Second,
		DialTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, CloseTimeout: 3 * time.Second,
		reconnectMin: time.Second / 2, reconnectMax: time.Minute, // the values of Connection.Reconnect
	}); !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	for name, l := range map[string]limits{
		"Window":         {func(n int) { c.Window = n }, 1, 65_536},
		"WindowBytes":    {func(n int) { c.WindowBytes = n }, 1, 0},
		"ConfirmTimeout": {func(n int) { c.ConfirmTimeout = time.Duration(n) }, 1, 0},
		"ReadyTimeout":   {func(n int) { c.ReadyTimeout = time.Duration(n) }, 1, 0},
		"DialTimeout":    {func(n int) { c.DialTimeout = time.Duration(n) }, 1, 0},
		"WriteTimeout":   {func(n int) { c.WriteTimeout = time.Duration(n) }, 1, 0},
		"CloseTimeout":   {func(n int) { c.CloseTimeout = time.Duration(n) }, 1, 0},
		"Connection.Reconnect.BackoffInitialInterval": {func(n int) { c.reconnectMin = time.Duration(n) }, 1, int(time.Minute)},
	} {
		l.check(t, name, func() error { return c.validate(topology) })
	}
}

// The documented defaults and limits must be the same as in the code.
func TestSubscriberConfigHasTheDocumentedDefaultsAndLimits(t *testing.T) {
	t.Parallel()
	queue := amqp.NewDurableQueueConfig("amqp://broker")
	queue.Connection.Reconnect = nil
	topology, c := SubscriberConfig{}.withDefaults(queue)
	c.Logger = nil
	if want := (SubscriberConfig{
		InFlight: 4 * runtime.GOMAXPROCS(0), automatic: true, NackMin: 100 * time.Millisecond, NackMax: 10 * time.Second,
		ReadyTimeout: 5 * time.Second, CloseTimeout: 10 * time.Second,
		DialTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		reconnectMin: 100 * time.Millisecond, reconnectMax: 10 * time.Second, checkInterval: 15 * time.Second,
	}); !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	for name, l := range map[string]limits{
		"InFlight":                  {func(n int) { c.InFlight = n }, 1, math.MaxUint16},
		"Consume.Qos.PrefetchCount": {func(n int) { topology.Consume.Qos.PrefetchCount = n }, 0, math.MaxUint16},
		"NackMin":                   {func(n int) { c.NackMin = time.Duration(n) }, 1, int(10 * time.Second)},
		"ReadyTimeout":              {func(n int) { c.ReadyTimeout = time.Duration(n) }, 1, 0},
		"CloseTimeout":              {func(n int) { c.CloseTimeout = time.Duration(n) }, 1, 0},
		"DialTimeout":               {func(n int) { c.DialTimeout = time.Duration(n) }, 1, 0},
		"WriteTimeout":              {func(n int) { c.WriteTimeout = time.Duration(n) }, 1, 0},
		"Connection.Reconnect.BackoffInitialInterval": {func(n int) { c.reconnectMin = time.Duration(n) }, 1, int(10 * time.Second)},
	} {
		l.check(t, name, func() error { return c.validate(topology) })
	}
	topology.Consume.Qos.PrefetchSize = 1
	if err := c.validate(topology); err == nil || !strings.Contains(err.Error(), "PrefetchSize") {
		t.Error(err)
	}
}

func TestQuotedNamesAreShortened(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("n", 300)
	if got := quote(name); got != `"`+name+`"` {
		t.Error(got)
	}
	if got := quote(name + "n"); got != `"`+name+`"... (301 bytes)` {
		t.Error(got)
	}
}

// The Publisher or the Subscriber calls each of the functions below for every topic. So
// its constructor must refuse a nil function.
func TestConfigWithoutAFunctionIsRefused(t *testing.T) {
	t.Parallel()
	complete := amqp.NewDurablePubSubConfig("amqp://broker", amqp.GenerateQueueNameTopicName)
	for name, remove := range map[string]func(config *amqp.Config){
		"Exchange.GenerateName":      func(config *amqp.Config) { config.Exchange.GenerateName = nil },
		"Queue.GenerateName":         func(config *amqp.Config) { config.Queue.GenerateName = nil },
		"Publish.GenerateRoutingKey": func(config *amqp.Config) { config.Publish.GenerateRoutingKey = nil },
	} {
		config := complete
		remove(&config)
		for part, needed := range map[string]bool{
			"publisher":  name != "Queue.GenerateName",
			"subscriber": name != "Publish.GenerateRoutingKey",
		} {
			topology, subscriber := SubscriberConfig{}.withDefaults(config)
			err := subscriber.validate(topology)
			if part == "publisher" {
				topology, publisher := PublisherConfig{}.withDefaults(config)
				err = publisher.validate(topology)
			}
			if needed != (err != nil && strings.Contains(err.Error(), name+" is nil")) {
				t.Errorf("%s without %s: %v", part, name, err)
			}
		}
	}
}

func TestDestination(t *testing.T) {
	queues := amqp.NewDurableQueueConfig("")
	exchanges := amqp.NewDurablePubSubConfig("", nil)
	for name, c := range map[string]struct {
		uri    string
		config amqp.Config
		want   string
	}{
		"queues": {
			"amqp://ann:secret@rabbit:5673/orders", queues,
			`rabbitmq rabbit:5673 vhost "orders" exchange "" key "{topic}"`,
		},
		"exchanges": {
			"amqp://ann:secret@rabbit/", exchanges,
			`rabbitmq rabbit:5672 vhost "/" exchange "{topic}" key ""`,
		},
		"TLS, and a name in capitals": {
			"amqps://Rabbit.Example.COM/a%2Fb", queues,
			`rabbitmq rabbit.example.com:5671 vhost "a/b" exchange "" key "{topic}"`,
		},
		"a function that accepts certain topics only": {
			"amqp://rabbit", func() amqp.Config {
				config := amqp.NewDurableQueueConfig("")
				config.Exchange.GenerateName = func(topic string) string { panic("no such topic") }
				config.Publish.GenerateRoutingKey = func(topic string) string { return "v1.ü." + topic }
				return config
			}(),
			`rabbitmq rabbit:5672 vhost "/" exchange unknown key "v1.\u00fc.{topic}"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Connection.AmqpURI = c.uri
			p, err := NewPublisher(c.config, PublisherConfig{Nodes: []string{"other", "another:5673"}}) // change nothing
			kit.OK(t, err)
			defer p.Close()
			got := p.Destination()
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if strings.Contains(got, "secret") || strings.Contains(got, "ann") {
				t.Errorf("%s contains credentials", got)
			}
		})
	}
}

func TestPrefetch(t *testing.T) {
	for _, c := range []struct{ inFlight, asked, want int }{
		{1, 0, 1},
		{1, 1, 1},
		{1, 3, 3}, // the configured PrefetchCount is used
		{8, 0, 16},
		{8, 1, 16},
		{8, 2, 8},
		{8, 8, 8},
		{8, 50, 50},
		{40_000, 0, 65535},
		{65535, 1, 65535},
	} {
		if got := (SubscriberConfig{InFlight: c.inFlight}).prefetch(c.asked); got != c.want {
			t.Errorf("%d in flight, %d asked for: %d, not %d", c.inFlight, c.asked, got, c.want)
		}
	}
	for _, c := range []struct{ inFlight, gathers, want, prefetch int }{
		{0, 4000, 4000, 4000},
		{0, 100_000, 65535, 65535},
		{7, 4000, 7, 14}, // a configured InFlight is kept
	} {
		_, cfg := SubscriberConfig{InFlight: c.inFlight}.withDefaults(amqp.Config{})
		cfg = cfg.gathering(c.gathers)
		if cfg.InFlight != c.want || cfg.prefetch(0) != c.prefetch {
			t.Errorf("%d in flight for %d: %d with prefetch count %d", c.inFlight, c.gathers, cfg.InFlight, cfg.prefetch(0))
		}
	}
	_, cfg := SubscriberConfig{}.withDefaults(amqp.Config{})
	if !reflect.DeepEqual(cfg.gathering(1), cfg) || !reflect.DeepEqual(cfg.gathering(0), cfg) {
		t.Error("small batches change the number of messages in flight")
	}
	for _, c := range []struct {
		inFlight, prefetch int
		want               time.Duration
	}{{1, 1, 10 * time.Minute}, {8, 8, 10 * time.Minute}, {8, 9, 20 * time.Minute}, {8, 16, 20 * time.Minute}, {8, 17, 30 * time.Minute}} {
		if got := (SubscriberConfig{InFlight: c.inFlight}).longestUnacked(c.prefetch); got != c.want {
			t.Errorf("%d in flight of %d: %v, not %v", c.inFlight, c.prefetch, got, c.want)
		}
	}
}

// The error of Ping names the first cause and its remedy. Ping waits only if the
// problem can end without a change of the configuration or the broker.
func TestPingErrorNamesTheCauseAndTheRemedy(t *testing.T) {
	t.Parallel()
	config := amqp.ConnectionConfig{AmqpURI: "amqp://ann:secret@broker:5673/shop"}
	const (
		login = "rabbit: RabbitMQ at broker:5673 refuses the login; check user and password in Connection.AmqpURI: "
		vhost = `rabbit: RabbitMQ at broker:5673 refuses virtual host "shop"; create it with rabbitmqctl add_vhost, ` +
			"and give the user rights with rabbitmqctl set_permissions: "
		noTLS = "rabbit: no TLS connection to RabbitMQ at broker:5673; check Connection.TLSConfig, the broker's certificate, " +
			"and that the port is the one for TLS: "
		blocked = "rabbit: RabbitMQ at broker:5673 accepts no messages; free memory or disk there: "
		gone    = "rabbit: no connection to RabbitMQ at broker:5673; check host and port in Connection.AmqpURI, " +
			"and that the broker runs: "
	)
	for _, c := range []struct {
		reason error
		says   string
		stays  bool
	}{
		{amqp091.ErrCredentials, login, true},
		{&amqp091.Error{Code: amqp091.AccessRefused, Server: true, Reason: "ACCESS_REFUSED"}, login, true},
		{amqp091.ErrVhost, gone, false}, // the broker gave no reason
		{&amqp091.Error{Code: amqp091.NotAllowed, Server: true, Reason: "vhost shop not found"}, vhost, true},
		{&amqp091.Error{Code: amqp091.NotAllowed, Server: true, Reason: "connection limit (1) is reached"}, gone, false},
		{&amqp091.Error{Code: amqp091.NotAllowed, Reason: "not from the broker"}, gone, false},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, noTLS, true},
		{tls.RecordHeaderError{Msg: "no TLS"}, noTLS, true},
		{tls.AlertError(42), noTLS, true},
		{x509.UnknownAuthorityError{}, noTLS, true},
		{errBlocked, blocked, false},
		{errors.New("connection refused"), gone, false},
	} {
		for _, reason := range []error{c.reason, fmt.Errorf("dial: %w", c.reason)} {
			err := pingError(config, reason)
			if want := c.says + reason.Error(); err.Error() != want {
				t.Errorf("got  %s\nwant %s", err, want)
			}
			if !errors.Is(err, reason) || permanent(reason) != c.stays {
				t.Errorf("%v: permanent is %t, want %t", reason, permanent(reason), c.stays)
			}
		}
	}
}

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
		if _, err := amqp091.ParseURI(uri); err != nil || len(password) < 3 {
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
