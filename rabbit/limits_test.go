package rabbit

import (
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func encode(p *amqp.Publishing) error {
	return new(content).encode(p, func(b []byte) ([]byte, error) { return appendFields(b, p.Headers, PublishHeader) })
}

func TestContentRefuses(t *testing.T) {
	long := strings.Repeat("k", 256)
	nested := amqp.Table{"a": []any{amqp.Table{long: ""}}}
	for name, c := range map[string]struct {
		publishing amqp.Publishing
		want       error
		names      string
	}{
		"property":           {publishing: amqp.Publishing{Type: long}, want: ErrTooLarge, names: "type"},
		"header name":        {publishing: amqp.Publishing{Headers: amqp.Table{long: ""}}, want: ErrTooLarge, names: "header name"},
		"nested header name": {publishing: amqp.Publishing{Headers: nested}, want: ErrTooLarge, names: `"a"`},
		"header type":        {publishing: amqp.Publishing{Headers: amqp.Table{"a": uint64(1)}}, want: ErrInvalid, names: `"a"`},
		"type in an array":   {publishing: amqp.Publishing{Headers: amqp.Table{"a": []any{struct{}{}}}}, want: ErrInvalid, names: `"a"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := encode(&c.publishing)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.names) {
				t.Errorf("got %v, want %v that names %s", err, c.want, c.names)
			}
		})
	}

	fits := strings.Repeat("k", 255)
	if err := encode(&amqp.Publishing{Type: fits, Headers: amqp.Table{fits: ""}}); err != nil {
		t.Errorf("255 bytes: %v", err)
	}
}
