package cloudevents_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/eventbus/cloudevents"
	"github.com/watermill-once/once/internal/chain"
)

// plain is a marshaler, such as cqrs.JSONMarshaler.
type plain struct{ name string }

func (p plain) Marshal(v any) (*message.Message, error) {
	payload, err := json.Marshal(v)
	return message.NewMessage("m1", payload), err
}

func (plain) Unmarshal(msg *message.Message, v any) error { return json.Unmarshal(msg.Payload, v) }
func (p plain) Name(any) string                           { return p.name }
func (plain) NameFromMessage(msg *message.Message) string { return msg.Metadata.Get("name") }

// with returns a marshaler of events with this attribute.
func with(name, value string) cloudevents.Marshaler {
	return cloudevents.Marshaler{Data: plain{"placed"}, Source: "/shop", Attributes: func(any) map[string]string {
		return map[string]string{name: value}
	}}
}

func TestInvalidAttributesAreNotSent(t *testing.T) {
	for want, m := range map[string]cloudevents.Marshaler{
		"the source is empty":                    {Data: plain{"placed"}},
		"the type is empty":                      {Data: plain{}, Source: "/shop"},
		`the attribute "Subject" is not allowed`: with("Subject", "17"),
		`the attribute "data" is not allowed`:    with("data", "17"),
		`the attribute subject is "a\nb"`:        with("subject", "a\nb"),
	} {
		if _, err := m.Marshal(17); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A message that is no CloudEvent, or cannot be read, causes a permanent error.
func TestUnmarshalReadsEachForm(t *testing.T) {
	const structured = "application/cloudevents+json; charset=utf-8"
	for name, c := range map[string]struct {
		metadata  map[string]string
		payload   string
		marshaler cloudevents.Marshaler
		want      string // the data, or
		err       string
	}{
		"AMQP": {
			metadata: map[string]string{"cloudEvents:specversion": "1.0", "content-type": "application/json; charset=utf-8"},
			payload:  `"x"`, want: "x",
		},
		"JMS":        {metadata: map[string]string{"cloudEvents_specversion": "1.0"}, payload: `"x"`, want: "x"},
		"Kafka":      {metadata: map[string]string{"ce_specversion": "1.0", "content-type": "application/json"}, payload: `"x"`, want: "x"},
		"HTTP":       {metadata: map[string]string{"Ce-Specversion": "1.0", "Content-Type": "application/json"}, payload: `"x"`, want: "x"},
		"structured": {metadata: map[string]string{"content-type": structured}, payload: `{"specversion":"1.0","data":"x"}`, want: "x"},
		"base64":     {metadata: map[string]string{"content-type": structured}, payload: `{"specversion":"1.0","data_base64":"Ingi"}`, want: "x"},
		"text": {
			metadata: map[string]string{"content-type": structured}, marshaler: cloudevents.Marshaler{ContentType: "text/plain"},
			payload: `{"specversion":"1.0","datacontenttype":"text/plain","data":"\"x\""}`, want: "x",
		},
		"no event":        {payload: `"x"`, err: "the message is no CloudEvent"},
		"another version": {metadata: map[string]string{"cloudEvents:specversion": "0.3"}, err: `the specversion is "0.3", want "1.0"`},
		"another type": {
			metadata: map[string]string{"cloudEvents:specversion": "1.0", "content-type": "text/xml"},
			err:      `the data is "text/xml", want "application/json"`,
		},
		"a batch": {metadata: map[string]string{"content-type": "application/cloudevents-batch+json"}, err: "are not supported"},
		"no JSON": {metadata: map[string]string{"content-type": structured}, payload: `{`, err: "the structured event is no JSON object"},
		"no base64": {
			metadata: map[string]string{"content-type": structured}, payload: `{"specversion":"1.0","data_base64":"%"}`, err: "data_base64",
		},
		"other data": {metadata: map[string]string{"cloudEvents:specversion": "1.0"}, payload: `17`, err: "cannot unmarshal number"},
	} {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("m1", []byte(c.payload))
			msg.Metadata = c.metadata
			c.marshaler.Data = plain{}
			var got string
			err := c.marshaler.Unmarshal(msg, &got)
			if (err != nil) != (c.err != "") || err != nil && (!strings.Contains(err.Error(), c.err) || chain.Of(err).Kind != chain.Permanent) {
				t.Fatalf("%v, want %q", err, c.err)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
