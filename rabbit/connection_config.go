package rabbit

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// configErrors collects the errors of a configuration.
type configErrors []error

func (e *configErrors) requiref(ok bool, format string, args ...any) {
	if !ok {
		*e = append(*e, fmt.Errorf("rabbit: "+format, args...))
	}
}

type duration struct {
	name  string
	value time.Duration
}

func (e *configErrors) requirePositive(d duration) {
	e.requiref(d.value > 0, "%s is %v; it must be positive", d.name, d.value)
}

// connectionTimes contains the timeouts and pauses of a connection.
type connectionTimes struct {
	dial, write, reconnectMin, reconnectMax time.Duration
}

// withDefaults returns t with default values in place of zero values.
func (t connectionTimes) withDefaults(config amqp.ConnectionConfig) connectionTimes {
	if reconnect := config.Reconnect; reconnect != nil {
		t.reconnectMin = cmp.Or(t.reconnectMin, reconnect.BackoffInitialInterval)
		t.reconnectMax = cmp.Or(t.reconnectMax, reconnect.BackoffMaxInterval)
	}
	if uri, err := amqp091.ParseURI(config.AmqpURI); err == nil {
		t.dial = cmp.Or(t.dial, time.Duration(uri.ConnectionTimeout)*time.Millisecond)
	}
	t.dial = cmp.Or(t.dial, 10*time.Second)
	t.write = cmp.Or(t.write, 10*time.Second)
	t.reconnectMin = cmp.Or(t.reconnectMin, 100*time.Millisecond)
	t.reconnectMax = cmp.Or(t.reconnectMax, max(10*time.Second, t.reconnectMin))
	return t
}

func validateConnection(config amqp.ConnectionConfig) error {
	if config.AmqpURI == "" {
		return errors.New("rabbit: Connection.AmqpURI is empty")
	}
	var errs []error
	if _, err := amqp091.ParseURI(config.AmqpURI); err != nil {
		errs = append(errs, uriError(config.AmqpURI))
	}
	if config.TLSConfig != nil && config.AmqpConfig != nil && config.AmqpConfig.TLSClientConfig != nil {
		errs = append(errs, errors.New(
			"rabbit: Connection.TLSConfig and Connection.AmqpConfig.TLSClientConfig are both set; set only one"))
	}
	return errors.Join(errs...)
}

// uriError returns an error for an invalid uri. It does not contain the error of the
// parser, because the parser quotes the text that it cannot read. This text may be a
// password: if a password contains a "#", the parser reads a part of the password as
// the port.
func uriError(uri string) error {
	switch {
	case !strings.HasPrefix(uri, "amqp://") && !strings.HasPrefix(uri, "amqps://"):
		return errors.New("rabbit: Connection.AmqpURI must start with amqp:// or amqps://")
	case strings.ContainsAny(uri, " \t\r\n"):
		return errors.New("rabbit: Connection.AmqpURI contains white space; percent-encode it")
	}
	return errors.New("rabbit: Connection.AmqpURI is invalid (not shown here because it has a password); " +
		"percent-encode user, password and virtual host, and use numbers for numeric parameters")
}
