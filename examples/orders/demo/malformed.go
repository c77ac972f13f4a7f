package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/watermill-once/once/examples/orders/service"
)

// Rubbish is a message that can never be applied.
type Rubbish struct {
	ID      string
	Headers map[string]string
	Typed   bool // has headers that are no strings as well, where the transport can carry them
	Payload []byte
}

// rubbish returns one of each kind.
func rubbish() []Rubbish {
	id := "rubbish-" + rand.Text()
	noise := make([]byte, 102)
	_, _ = rand.Read(noise) // does not fail
	noise[100], noise[101] = 0, 0xff
	garbage := map[string]string{"nul": "\x00", "not-utf-8": "\xff\xfe", "long": strings.Repeat("x", 5000), "": "no name"}
	return []Rubbish{
		{ID: id + "-noise", Payload: noise},
		{ID: id + "-empty"},
		{ID: id + "-no-order", Payload: []byte(`{"order_id":"","total":1}`)},
		{ID: id + "-headers", Headers: garbage, Typed: true, Payload: []byte(`{"order_id":`)},
		{ID: "", Payload: []byte(`{"order_id":"who knows"}`)},
		{ID: id + "\x00\xff", Payload: []byte(`{"order_id":"who knows"}`)},
		{ID: id + strings.Repeat("-long", 100), Payload: []byte(`{"order_id":"who knows"}`)},
	}
}

// inject sends rubbish to every topic, past the outbox. Each consumer of a
// topic gets a copy, and copies are what is counted.
func (f *Faults) inject(ctx context.Context, wire Wire) error {
	if f == nil {
		return nil
	}
	copies := map[string]int{}
	for _, to := range service.Subscriptions() {
		copies[to.Topic]++
	}
	for topic, consumers := range copies {
		for _, r := range rubbish() {
			if err := wire.Send(ctx, topic, r); err != nil {
				return fmt.Errorf("demo: send a malformed message: %w", err)
			}
			f.injected.Malformed.Add(int64(consumers))
		}
	}
	return nil
}
