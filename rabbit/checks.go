package rabbit

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// checks are the errors of a configuration.
type checks []error

func (c *checks) checkf(ok bool, format string, args ...any) {
	if !ok {
		*c = append(*c, fmt.Errorf("rabbit: "+format, args...))
	}
}

type duration struct {
	name  string
	value time.Duration
}

func (c *checks) positive(d duration) {
	c.checkf(d.value > 0, "%s is %v: not positive", d.name, d.value)
}

// connectionTimes are what keeping up a connection needs.
type connectionTimes struct {
	dial, write, low, high time.Duration
}

// connectionDefaults fills in what is 0.
func connectionDefaults(config amqp.ConnectionConfig, t connectionTimes) connectionTimes {
	if reconnect := config.Reconnect; reconnect != nil {
		t.low = cmp.Or(t.low, reconnect.BackoffInitialInterval)
		t.high = cmp.Or(t.high, reconnect.BackoffMaxInterval)
	}
	if uri, err := amqp091.ParseURI(config.AmqpURI); err == nil {
		t.dial = cmp.Or(t.dial, time.Duration(uri.ConnectionTimeout)*time.Millisecond)
	}
	t.dial = cmp.Or(t.dial, 10*time.Second)
	t.write = cmp.Or(t.write, 10*time.Second)
	t.low = cmp.Or(t.low, 100*time.Millisecond)
	t.high = cmp.Or(t.high, max(10*time.Second, t.low))
	return t
}
