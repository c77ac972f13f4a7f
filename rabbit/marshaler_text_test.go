package rabbit

import (
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestHeaderText(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.FixedZone("", 3600))
	for name, c := range map[string]struct {
		value any
		want  string
	}{
		"string":              {"plain", "plain"},
		"empty string":        {"", ""},
		"NUL and bad UTF-8":   {"a\x00b\xff", "a\x00b\xff"},
		"bytes":               {[]byte("a\x00b\xff"), "a\x00b\xff"},
		"nil":                 {nil, ""},
		"true":                {true, "true"},
		"false":               {false, "false"},
		"byte":                {byte(200), "200"},
		"int8":                {int8(-8), "-8"},
		"int16":               {int16(-16), "-16"},
		"int32":               {int32(-32), "-32"},
		"int":                 {7, "7"},
		"int64":               {int64(math.MinInt64), "-9223372036854775808"},
		"float32":             {float32(0.1), "0.1"},
		"float64":             {1e300, "1e+300"},
		"NaN":                 {math.NaN(), "NaN"},
		"infinity":            {math.Inf(-1), "-Inf"},
		"decimal":             {amqp.Decimal{Scale: 2, Value: 1250}, "12.50"},
		"small decimal":       {amqp.Decimal{Scale: 4, Value: -5}, "-0.0005"},
		"whole decimal":       {amqp.Decimal{Value: 12}, "12"},
		"least decimal":       {amqp.Decimal{Scale: 1, Value: math.MinInt32}, "-214748364.8"},
		"time":                {at, "2026-02-03T03:05:06Z"},
		"table":               {amqp.Table{"b": int32(1), "a": "<x>"}, `{"a":"<x>","b":1}`},
		"array":               {[]any{nil, true, "s", []byte("b")}, `[null,true,"s","b"]`},
		"nested":              {amqp.Table{"t": amqp.Table{"l": []any{at, math.NaN()}}}, `{"t":{"l":["2026-02-03T03:05:06Z","NaN"]}}`},
		"decimal in a table":  {amqp.Table{"d": amqp.Decimal{Scale: 1, Value: 5}}, `{"d":0.5}`},
		"bad UTF-8 in a list": {[]any{"\xff\x00"}, `["\ufffd\u0000"]`},
		"empty table":         {amqp.Table{}, `{}`},
		"nil array":           {[]any(nil), `[]`},
		"nil table":           {amqp.Table(nil), `{}`},
		"not of AMQP":         {make(chan int), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := headerText(c.value); got != c.want {
				t.Errorf("headerText(%#v) = %q, want %q", c.value, got, c.want)
			}
		})
	}
}
