package rabbit

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// headerText converts the value of a header to a metadata value. Marshaler describes
// the forms.
func headerText(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case nil:
		return ""
	}
	switch v := plain(value).(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	default:
		return jsonText(v)
	}
}

// plain converts the value of a header to a value that encoding/json can encode.
func plain(value any) any {
	switch v := value.(type) {
	case []byte:
		return string(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case float32:
		return number(float64(v), 32)
	case float64:
		return number(v, 64)
	case amqp.Decimal:
		return json.Number(decimal(v))
	case amqp.Table:
		fields := make(map[string]any, len(v))
		for name, field := range v {
			fields[name] = plain(field)
		}
		return fields
	case []any:
		items := make([]any, len(v))
		for i, item := range v {
			items[i] = plain(item)
		}
		return items
	default:
		return v // bool, integers, string and nil are the remaining types of AMQP
	}
}

func number(f float64, bits int) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, bits) // JSON has no NaN and no infinite numbers
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, bits))
}

// decimal returns value * 10^-scale as text, without rounding.
func decimal(d amqp.Decimal) string {
	digits := strconv.FormatInt(int64(d.Value), 10)
	if d.Scale == 0 {
		return digits
	}
	sign := ""
	if d.Value < 0 {
		sign, digits = "-", digits[1:]
	}
	scale := int(d.Scale)
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - scale
	return sign + digits[:point] + "." + digits[point:]
}

func jsonText(value any) string {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "" // AMQP has no other types
	}
	return strings.TrimSuffix(text.String(), "\n")
}
