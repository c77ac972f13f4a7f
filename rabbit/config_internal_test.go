package rabbit

import (
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
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
		ReconnectMin: time.Second / 2, ReconnectMax: time.Minute, // the values of Connection.Reconnect
	}); c != want {
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
		"ReconnectMin":   {func(n int) { c.ReconnectMin = time.Duration(n) }, 1, int(time.Minute)},
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
		LongestUnackedWait: 10 * time.Minute, ReadyTimeout: 5 * time.Second, CloseTimeout: 10 * time.Second,
		DialTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		ReconnectMin: 100 * time.Millisecond, ReconnectMax: 10 * time.Second,
	}); c != want {
		t.Errorf("got %+v, want %+v", c, want)
	}
	for name, l := range map[string]limits{
		"InFlight":                  {func(n int) { c.InFlight = n }, 1, math.MaxUint16},
		"Consume.Qos.PrefetchCount": {func(n int) { topology.Consume.Qos.PrefetchCount = n }, 0, math.MaxUint16},
		"NackMin":                   {func(n int) { c.NackMin = time.Duration(n) }, 1, int(10 * time.Second)},
		"LongestUnackedWait":        {func(n int) { c.LongestUnackedWait = time.Duration(n) }, 1, 0},
		"ReadyTimeout":              {func(n int) { c.ReadyTimeout = time.Duration(n) }, 1, 0},
		"CloseTimeout":              {func(n int) { c.CloseTimeout = time.Duration(n) }, 1, 0},
		"DialTimeout":               {func(n int) { c.DialTimeout = time.Duration(n) }, 1, 0},
		"WriteTimeout":              {func(n int) { c.WriteTimeout = time.Duration(n) }, 1, 0},
		"ReconnectMin":              {func(n int) { c.ReconnectMin = time.Duration(n) }, 1, int(10 * time.Second)},
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
