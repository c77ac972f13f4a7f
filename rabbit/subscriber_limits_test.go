package rabbit

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestBrokerVersion(t *testing.T) {
	for version, want := range map[any]string{
		"3.8.9": "3.8", "3.13.7": "3.13", "4.0.0": "4.0", "4.1.4": "4.1", "4.3.0": "4.3", "4.10.2": "4.10", "10.0.1": "10.0",
		"4.3.0-beta.1": "4.3", "4.0-rc": "4.0", "4.2": "4.2", "4": "4.0", "4.1.0+3.gabcdef": "4.1",
		"": "0.0", "unknown": "0.0", "4.x": "4.0", 4: "0.0", nil: "0.0",
	} {
		major, minor := brokerVersion(amqp.Table{"version": version})
		if got := fmt.Sprintf("%d.%d", major, minor); got != want {
			t.Errorf("%v is read as %s, want %s", version, got, want)
		}
	}
	if major, minor := brokerVersion(nil); major != 0 || minor != 0 {
		t.Errorf("no properties are read as %d.%d", major, minor)
	}
}

// Trap 47. The limit of a quorum queue is in its arguments. Since RabbitMQ 4, a quorum
// queue without such an argument has the broker's default limit. Other types of queues
// have no limit.
func TestTrap47TheDeliveryLimitOfAQueue(t *testing.T) {
	quorum := func(limit any) amqp.Table { return amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": limit} }
	for name, c := range map[string]struct {
		queue   amqp.Table
		major   int
		limit   int64
		limited bool
	}{
		"3, not configured":                 {amqp.Table{"x-queue-type": "quorum"}, 3, 0, false},
		"4, not configured":                 {amqp.Table{"x-queue-type": "quorum"}, 4, 20, true},
		"5, not configured":                 {amqp.Table{"x-queue-type": "quorum"}, 5, 20, true},
		"no version, not configured":        {amqp.Table{"x-queue-type": "quorum"}, 0, 0, false},
		"4, a classic queue":                {amqp.Table{"x-queue-type": "classic"}, 4, 0, false},
		"4, a classic one with limit":       {amqp.Table{"x-queue-type": "classic", "x-delivery-limit": 3}, 4, 0, false},
		"4, no type configured":             {nil, 4, 0, false},
		"3, a limit":                        {quorum(int32(3)), 3, 3, true},
		"4, a limit":                        {quorum(int64(100)), 4, 100, true},
		"4, a limit of 0":                   {quorum(0), 4, 0, true},
		"4, no limit configured":            {quorum(-1), 4, -1, false},
		"4, no limit configured, as a byte": {quorum(int8(-1)), 4, -1, false},
		"4, a limit as a short":             {quorum(int16(7)), 4, 7, true},
		"4, a limit as unsigned":            {quorum(uint8(200)), 4, 200, true},
		"4, a limit that is no number":      {quorum("7"), 4, 20, true}, // the broker refuses such a queue
	} {
		limit, limited := deliveryLimit(c.queue, c.major)
		if limited != c.limited || (limited && limit != c.limit) {
			t.Errorf("%s: %d, %v, want %d, %v", name, limit, limited, c.limit, c.limited)
		}
	}
}

// Trap 97. The Subscriber declares a queue without a limit if three conditions are
// true: no limit is configured, the default limit would make the queue lose messages,
// and the broker supports queues without a limit.
func TestTrap97_AQueueIsDeclaredWithoutTheDefaultLimit(t *testing.T) {
	for name, c := range map[string]struct {
		queue   amqp.Table
		version string
		want    bool
	}{
		"3.10":                 {amqp.Table{"x-queue-type": "quorum"}, "3.10.8", false},
		"3.13":                 {amqp.Table{"x-queue-type": "quorum"}, "3.13.7", false},
		"4.0":                  {amqp.Table{"x-queue-type": "quorum"}, "4.0.5", true},
		"4.3":                  {amqp.Table{"x-queue-type": "quorum"}, "4.3.6", true},
		"unknown":              {amqp.Table{"x-queue-type": "quorum"}, "", false},
		"classic":              {amqp.Table{"x-queue-type": "classic"}, "4.0.5", false},
		"stream":               {amqp.Table{"x-queue-type": "stream"}, "4.0.5", false},
		"no type":              {nil, "4.0.5", false},
		"a limit":              {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 5}, "4.0.5", false},
		"none":                 {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": -1}, "4.0.5", false},
		"dead-letter exchange": {amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": ""}, "4.0.5", false},
	} {
		before := len(c.queue)
		got, ok := withoutDeliveryLimit(c.queue, amqp.Table{"version": c.version})
		if ok != c.want || len(c.queue) != before {
			t.Errorf("%s: %v, %v, want %v", name, got, ok, c.want)
		}
		if ok && (got["x-delivery-limit"] != int32(-1) || len(got) != before+1) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Trap 47. Since RabbitMQ 4.3, a nack does not count towards the delivery limit.
func TestTrap47WhichBrokersCountNacks(t *testing.T) {
	for version, want := range map[[2]int]bool{
		{3, 8}: true, {3, 13}: true, {4, 0}: true, {4, 2}: true, {4, 3}: false, {4, 10}: false, {5, 0}: false,
	} {
		if got := nacksCount(version[0], version[1]); got != want {
			t.Errorf("%v: %v, want %v", version, got, want)
		}
	}
}

func TestTrap46TheConsumerTimeout(t *testing.T) {
	hour := amqp.Table{"x-consumer-timeout": int32(time.Hour.Milliseconds())}
	minute := amqp.Table{"x-consumer-timeout": time.Minute.Milliseconds()}
	for name, c := range map[string]struct {
		consume, queue amqp.Table
		want           time.Duration
	}{
		"not configured":    {nil, nil, 30 * time.Minute},
		"the queue's":       {nil, minute, time.Minute},
		"the consumer's":    {hour, nil, time.Hour},
		"the consumer's is": {hour, minute, time.Hour},
		"no number":         {amqp.Table{"x-consumer-timeout": "1h"}, nil, 30 * time.Minute},
	} {
		if got := consumerTimeout(c.consume, c.queue); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
