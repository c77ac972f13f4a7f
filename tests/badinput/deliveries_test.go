package badinput

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// delivery is a message of a foreign sender, with the fates that the test accepts.
type delivery struct {
	amqp.Publishing

	want []fate
}

func headers(t amqp.Table) delivery {
	return delivery{amqp.Publishing{MessageId: "id", Headers: t}, []fate{delivered}}
}

func id(id any) delivery {
	return delivery{amqp.Publishing{Headers: amqp.Table{"_watermill_message_uuid": id}}, []fate{delivered}}
}

// is returns d with other expected fates. The message must have one of them.
func (d delivery) is(fates ...fate) delivery {
	d.want = fates
	return d
}

func nested(depth int) amqp.Table {
	t := amqp.Table{}
	for range depth {
		t = amqp.Table{"t": t}
	}
	return t
}

func many(n int) amqp.Table {
	t := amqp.Table{}
	for i := range n {
		t[strings.Repeat("k", 1+i%200)+string(rune('a'+i/200))] = int32(i)
	}
	return t
}

func deliveries() map[string]delivery {
	native := func(id string) delivery { return delivery{amqp.Publishing{MessageId: id}, []fate{delivered}} }
	with := func(change func(p *amqp.Publishing)) delivery {
		d := native("id")
		change(&d.Publishing)
		return d
	}
	return map[string]delivery{
		"no id":                      native("").is(invalidID),
		"an empty header for an id":  id("").is(invalidID),
		"a header of nothing":        id(nil).is(invalidID),
		"an id of 255 bytes":         native(long[:255]),
		"an id of 256 bytes":         id(long[:256]).is(invalidID),
		"an id of 100,000 bytes":     id(bulky[:100_000]).is(invalidID),
		"an id with a NUL":           id("a\x00").is(invalidID),
		"an id of other bytes":       id("\xff\xfe").is(invalidID),
		"a native id of other bytes": native("\xed\xa0\x80").is(invalidID),
		"an id of half a letter":     id("\xc3").is(invalidID),
		"an id that is a number":     id(int64(42)),
		"an id that is a fraction":   id(1.5),
		"an id that is true":         id(true),
		"an id that is a time":       id(time.Unix(1_700_000_000, 0)),
		"an id that is a table":      id(amqp.Table{"a": "b"}),
		"an id that is an array":     id([]any{"a", int32(1)}),
		"an id of bytes":             id([]byte("bytes")),
		"an id of spaces":            native("  "),
		"an id with quotes":          native(`'"; DROP TABLE once_inbox; --`),

		"a bool":                headers(amqp.Table{"a": true}),
		"a byte":                headers(amqp.Table{"a": byte(200)}),
		"an int8":               headers(amqp.Table{"a": int8(-128)}),
		"an int16":              headers(amqp.Table{"a": int16(math.MinInt16)}),
		"an int32":              headers(amqp.Table{"a": int32(math.MinInt32)}),
		"an int64":              headers(amqp.Table{"a": int64(math.MinInt64)}),
		"a float":               headers(amqp.Table{"a": float32(1.5)}),
		"a double":              headers(amqp.Table{"a": math.MaxFloat64}),
		"no number":             headers(amqp.Table{"a": math.NaN()}).is(refused),
		"an infinite number":    headers(amqp.Table{"a": math.Inf(1)}).is(refused),
		"a decimal":             headers(amqp.Table{"a": amqp.Decimal{Scale: 255, Value: math.MinInt32}}),
		"a text":                headers(amqp.Table{"a": "b"}),
		"a text of other bytes": headers(amqp.Table{"a": "\x00\xff"}),
		"bytes":                 headers(amqp.Table{"a": []byte{0, 255}}),
		"a time":                headers(amqp.Table{"a": time.Unix(0, 0)}),
		"a time far off":        headers(amqp.Table{"a": time.Unix(1<<40, 0)}),
		"nothing":               headers(amqp.Table{"a": nil}),
		"a table":               headers(amqp.Table{"a": amqp.Table{"b": amqp.Table{}}}),
		"an array":              headers(amqp.Table{"a": []any{nil, true, "s", []any{int16(1)}}}),
		"an empty array":        headers(amqp.Table{"a": []any{}}),
		"tables in 500 tables":  headers(nested(500)),
		"400 headers":           headers(many(400)),
		"an empty name":         headers(amqp.Table{"": "a"}),
		"a name of 255 bytes":   headers(amqp.Table{long[:255]: "a"}),
		"a value of 100,000":    headers(amqp.Table{"a": bulky[:100_000]}),

		"x-death":                    headers(amqp.Table{"x-death": []any{amqp.Table{"count": int64(5), "queue": "q", "time": time.Unix(1, 0)}}}),
		"x-death of text":            headers(amqp.Table{"x-death": "often"}),
		"x-delivery-count of text":   headers(amqp.Table{"x-delivery-count": "often"}),
		"x-delivery-count below 0":   headers(amqp.Table{"x-delivery-count": int64(-5)}),
		"x-delivery-count over all":  headers(amqp.Table{"x-delivery-count": int64(math.MaxInt64)}),
		"our answers, forged":        headers(amqp.Table{"once_redelivered": "true", "once_delivery_count": "99"}),
		"our number, forged":         headers(amqp.Table{"once_publish": int64(1)}),
		"an ordering key of a table": headers(amqp.Table{"once_ordering_key": amqp.Table{}}),
		"an ordering key over all":   headers(amqp.Table{"once_ordering_key": bulky[:1000]}),
		passOn + "a topic":           headers(amqp.Table{"once_topic": "elsewhere"}),
		passOn + "a due time":        headers(amqp.Table{"once_due_at": "9999-12-31T00:00:00Z"}),
		passOn + "an unknown key":    headers(amqp.Table{"once_of_tomorrow": "x"}),
		passOn + "a bad due time":    headers(amqp.Table{"once_due_at": "never"}),
		"a due time of words":        headers(amqp.Table{"once_due_at": "never"}),
		"a tenant of other bytes":    headers(amqp.Table{"once_tenant_id": "\x00\xff"}),
		"a tenant over all":          headers(amqp.Table{"once_tenant_id": long}),
		"a version of words":         headers(amqp.Table{"once_aggregate_type": "a", "once_aggregate_id": "b", "once_aggregate_version": "one"}),
		"a broken trace":             headers(amqp.Table{"traceparent": "00-zz-", "tracestate": "\x00"}),
		"a trace that is a number":   headers(amqp.Table{"traceparent": int64(7)}),

		"gzip":                 with(func(p *amqp.Publishing) { p.ContentEncoding = "gzip" }),
		"an unknown encoding":  with(func(p *amqp.Publishing) { p.ContentEncoding = "\xff" }),
		"no such content type": with(func(p *amqp.Publishing) { p.ContentType = "nonsense/\x00" }),
		"JSON that is none":    with(func(p *amqp.Publishing) { p.ContentType = "application/json" }),
		"every property": with(func(p *amqp.Publishing) {
			p.CorrelationId, p.ReplyTo, p.Type, p.AppId = long[:255], long[:255], "\xff", "\x00"
		}),
		"a priority":             with(func(p *amqp.Publishing) { p.Priority = 255 }),
		"a mode of nobody":       with(func(p *amqp.Publishing) { p.DeliveryMode = 77 }).is(refused, delivered), // RabbitMQ 3.10 refuses it
		"a timestamp far off":    with(func(p *amqp.Publishing) { p.Timestamp = time.Unix(1<<60, 0) }),
		"a timestamp before all": with(func(p *amqp.Publishing) { p.Timestamp = time.Unix(-1<<40, 0) }),
	}
}

// stranger publishes a message on a connection of its own, because the broker may close this
// connection.
func (w *world) stranger(p amqp.Publishing) error {
	w.Helper()
	conn, err := amqp.Dial(w.broker)
	kit.OK(w, err)
	defer conn.Close()
	channel, err := conn.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	kit.OK(w, err)
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	confirm, err := channel.PublishWithDeferredConfirmWithContext(w.Context(), topic, "", false, false, p)
	if err != nil {
		return err
	}
	select {
	case <-confirm.Done():
	case <-closed: //nolint:errcheck // it is enough to know that the channel was closed
	}
	if !confirm.Acked() {
		return errors.New("the broker does not take it")
	}
	return nil
}

// Deliveries of foreign senders have the expected results. The body of each message is
// the name of its case, except in two cases.
func TestDeliveriesOfForeignSenders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kit.Postgres(t), kit.Rabbit(t).URL, lease)
	w.consume()
	conn, err := amqp.Dial(w.broker)
	kit.OK(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(t, err)
	send := func(p amqp.Publishing, body string) {
		p.Body = []byte(body)
		if err := w.send(channel, p); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
	}
	cases, happened, passedOn := deliveries(), map[string]error{}, 0
	for name, d := range cases {
		if strings.HasPrefix(name, passOn) {
			passedOn++
		}
		send(amqp.Publishing{MessageId: name + " before"}, name+" before")
		if d.MessageId == "id" {
			d.MessageId = "id of " + name
		}
		d.Body = []byte(name)
		happened[name] = w.stranger(d.Publishing)
		send(amqp.Publishing{MessageId: name + " after"}, name+" after")
	}
	large := strings.Repeat("x", 8<<20)
	send(amqp.Publishing{MessageId: "empty"}, "")
	send(amqp.Publishing{MessageId: "large"}, large)
	arrived := 3*len(cases) + 2
	for _, err := range happened {
		if err != nil {
			arrived--
		}
	}
	w.settled(arrived+passedOn, passedOn)
	if n := w.count(`once_outbox WHERE topic <> 'produced' OR due_at IS NOT NULL`); n != 0 {
		t.Errorf("headers of a foreign sender control %d of %d produced messages", n, passedOn)
	}
	found := w.fates()
	for name, d := range cases {
		w.Run(name, func(t *testing.T) {
			neighbours(t, found, name)
			got, err := found[name], happened[name]
			if err != nil && len(got) == 0 {
				got = []fate{refused}
			}
			if len(got) != 1 || !slices.Contains(d.want, got[0]) {
				t.Errorf("its fates are %v, want one of %v (%v)", got, d.want, err)
			}
		})
	}
	for name, body := range map[string]string{"an empty body": "", "a body of 8 MiB": large} {
		w.Run(name, func(t *testing.T) {
			if got := found[body]; len(got) != 1 || got[0] != delivered {
				t.Errorf("its fates are %v, want that it is delivered once", got)
			}
		})
	}
	page, err := w.consumer.Quarantine().List(t.Context(), operate.Filter{Limit: 1000})
	kit.OK(t, err)
	for _, e := range page.Rows { // the quarantine also keeps data that a text column cannot store
		if d := cases[string(e.Message.Payload)]; d.MessageId != "" && e.Message.UUID != d.MessageId {
			t.Errorf("%q is in quarantine as %q", d.MessageId, e.Message.UUID)
		}
	}
}
