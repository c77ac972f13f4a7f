package amqpwire

import (
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func encode(p *amqp.Publishing) error {
	return new(Content).Encode(p, func(b []byte) ([]byte, error) { return AppendHeaders(b, p.Headers) })
}

func TestContentRefusesWhatAMQPCannotCarry(t *testing.T) {
	long := strings.Repeat("k", 256)
	nested := amqp.Table{"a": []any{amqp.Table{long: ""}}}
	for name, c := range map[string]struct {
		publishing amqp.Publishing
		tooLarge   bool
		names      string
	}{
		"property":           {publishing: amqp.Publishing{Type: long}, tooLarge: true, names: "type"},
		"header name":        {publishing: amqp.Publishing{Headers: amqp.Table{long: ""}}, tooLarge: true, names: "header name"},
		"nested header name": {publishing: amqp.Publishing{Headers: nested}, tooLarge: true, names: `"a"`},
		"header type":        {publishing: amqp.Publishing{Headers: amqp.Table{"a": uint64(1)}}, names: `"a"`},
		"type in an array":   {publishing: amqp.Publishing{Headers: amqp.Table{"a": []any{struct{}{}}}}, names: `"a"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := encode(&c.publishing)
			e, ok := errors.AsType[*EncodeError](err)
			if !ok || e.TooLarge != c.tooLarge || !strings.Contains(err.Error(), c.names) {
				t.Errorf("got %v, want an EncodeError that names %s, too large: %v", err, c.names, c.tooLarge)
			}
		})
	}

	fits := strings.Repeat("k", 255)
	if err := encode(&amqp.Publishing{Type: fits, Headers: amqp.Table{fits: ""}}); err != nil {
		t.Errorf("255 bytes: %v", err)
	}
}
