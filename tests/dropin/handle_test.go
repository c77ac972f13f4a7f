package dropin

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	jsonv2 "github.com/go-json-experiment/json"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/eventbus"
)

// jsonV2 is a marshaler as a user writes one for encoding/json/v2.
type jsonV2 struct{ cqrs.JSONMarshaler }

func (jsonV2) Unmarshal(msg *message.Message, v any) error {
	return jsonv2.Unmarshal(msg.Payload, v, jsonv2.RejectUnknownMembers(true))
}

// once.Handle gives the handler its event, read by any marshaler. A message that cannot
// be read, or has the name of another event, is quarantined at once.
func TestHandle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		configured, sender cqrs.CommandEventMarshaler
		add                func(c *once.Consumer, b *bench, to transport, h *handler)
		event              func(id string) any
		names              bool
	}{
		"JSON by default": {nil, cqrs.JSONMarshaler{}, addOrders, newOrder, false},
		"JSON":            {cqrs.JSONMarshaler{}, cqrs.JSONMarshaler{}, addOrders, newOrder, true},
		"JSON v2":         {eventbus.Marshaler{CommandEventMarshaler: jsonV2{}}, cqrs.JSONMarshaler{}, addOrders, newOrder, true},
		"Protocol Buffers": {cqrs.ProtoMarshaler{}, cqrs.ProtoMarshaler{}, func(c *once.Consumer, b *bench, to transport, h *handler) {
			once.Handle(c, b.router, consumer, to.topic, to.subscriber(), func(ctx context.Context, _ *sql.Tx, event *wrapperspb.StringValue) error {
				return h.do(ctx, event.GetValue())
			})
		}, func(id string) any { return wrapperspb.String(id) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "gochannel")
			to := transports["gochannel"](t, b.db)
			c.add(b.consumer(once.ConsumerConfig{Marshaler: c.configured}), b, to, &handler{})
			b.start()
			b.publishEvents(to, c.sender, c.event, "fine", "fails", "hopeless", "fine", "broken")
			refused := 1
			if c.names {
				b.publishEvents(to, c.sender, c.event, "unknown")
				refused++
			}
			b.reaches(2, `effects WHERE how = 'once'`)
			b.reaches(1, `once_parked WHERE state = 'quarantined' AND message_id = 'hopeless' AND reason = 'exhausted'`)
			b.reaches(refused, `once_parked WHERE state = 'quarantined' AND reason = 'permanent' AND attempts = 1`)
		})
	}
}

func newOrder(id string) any { return orderPlaced{ID: id} }

func addOrders(c *once.Consumer, b *bench, to transport, h *handler) {
	once.Handle(c, b.router, consumer, to.topic, to.subscriber(), func(ctx context.Context, _ *sql.Tx, event orderPlaced) error {
		return h.do(ctx, event.ID)
	})
}
