package amqpwire

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var allTypes = amqp.Table{
	"bool": true, "byte": byte(1), "int8": int8(-1), "int16": int16(-2), "int": 3, "int32": int32(-4), "int64": int64(-5),
	"float": float32(1.5), "double": 2.5, "decimal": amqp.Decimal{Scale: 2, Value: 1250}, "text": "text\x00\xff", "bytes": []byte{0, 1},
	"time": time.Unix(1_700_000_000, 0), "void": nil, "table": amqp.Table{"a": "b", "c": amqp.Table{}},
	"array": []any{"s", int16(2), []any{nil}},
}

// textHeader finds a header after headers of all other types.
func TestTextHeader(t *testing.T) {
	encoded := func(p *amqp.Publishing, fields amqp.Table) []byte {
		var c Content
		if err := c.Encode(p, func(b []byte) ([]byte, error) {
			b, err := AppendHeaders(b, fields)
			if err != nil {
				return b, err
			}
			return AppendTextHeader(b, "wanted", "found")
		}); err != nil {
			t.Fatal(err)
		}
		putNumber(c.properties[c.numberAt:], 35*36+1)
		return append(make([]byte, contentHeaderOverhead), c.properties...)
	}
	for name, p := range map[string]*amqp.Publishing{
		"bare":  {},
		"full":  {ContentType: "a", ContentEncoding: "b", CorrelationId: "c", Priority: 1, AppId: "d"},
		"other": {ContentEncoding: "b", Timestamp: time.Now()},
	} {
		header := encoded(p, allTypes)
		if got := textHeader(header, "wanted"); got != "found" {
			t.Errorf("%s: got %q", name, got)
		}
		if got := textHeader(header, PublishHeader); got != "00000000000z1" {
			t.Errorf("%s: number %q", name, got)
		}
		if got := textHeader(header, "absent"); got != "" {
			t.Errorf("%s: absent is %q", name, got)
		}
		for cut := range header { // a truncated header must not make it read past the end
			textHeader(header[:cut], "absent")
		}
	}
}

func FuzzTextHeader(f *testing.F) {
	f.Add([]byte("............\x20\x00\x00\x00\x00\x10\x06wantedS\x00\x00\x00\x03abc"), "wanted")
	f.Fuzz(func(_ *testing.T, payload []byte, name string) { textHeader(payload, name) })
}
