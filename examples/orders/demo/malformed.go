package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/watermill-once/once/examples/orders/service"
)

// Malformed is a message that no consumer can apply.
type Malformed struct {
	ID      string
	Headers map[string]string
	Typed   bool // also send headers that are not strings, if the transport supports them
	Payload []byte
}

// malformedMessages returns one message for each kind of mistake.
func malformedMessages() []Malformed {
	id := "malformed-" + rand.Text()
	noise := make([]byte, 102)
	_, _ = rand.Read(noise) // it never fails
	noise[100], noise[101] = 0, 0xff
	garbage := map[string]string{"nul": "\x00", "not-utf-8": "\xff\xfe", "long": strings.Repeat("x", 5000), "": "no name"}
	return []Malformed{
		{ID: id + "-noise", Payload: noise},
		{ID: id + "-empty"},
		{ID: id + "-no-order", Payload: []byte(`{"order_id":"","total":1}`)},
		{ID: id + "-headers", Headers: garbage, Typed: true, Payload: []byte(`{"order_id":`)},
		{ID: "", Payload: []byte(`{"order_id":"who knows"}`)},
		{ID: id + "\x00\xff", Payload: []byte(`{"order_id":"who knows"}`)},
		{ID: id + strings.Repeat("-long", 100), Payload: []byte(`{"order_id":"who knows"}`)},
	}
}

// inject sends malformed messages to every topic, directly to the transport. It counts a
// message once for each consumer of its topic, because each consumer gets a copy.
func (f *Faults) inject(ctx context.Context, wire Wire) error {
	if f == nil {
		return nil
	}
	consumers := map[string]int{}
	for _, to := range service.Subscriptions() {
		consumers[to.Topic]++
	}
	for topic, count := range consumers {
		for _, m := range malformedMessages() {
			if err := wire.Send(ctx, topic, m); err != nil {
				return fmt.Errorf("demo: send a malformed message: %w", err)
			}
			f.injected.Malformed.Add(int64(count))
		}
	}
	return nil
}
