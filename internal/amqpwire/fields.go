package amqpwire

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Header values are encoded as amqp091 encodes them. amqp091 follows RabbitMQ's
// interpretation of the protocol: https://www.rabbitmq.com/amqp-0-9-1-errata#section_3

// AppendTextHeader appends a header whose value is a string. It fails if the
// name is longer than [MaxShortString].
func AppendTextHeader(b []byte, name, value string) ([]byte, error) {
	b, err := appendName(b, name)
	if err != nil {
		return b, err
	}
	return appendText(b, value), nil
}

// AppendHeaders appends the headers of the table, except [PublishHeader], which Encode
// sets itself. If AMQP cannot carry a header, the error names the header and wraps an
// [EncodeError].
func AppendHeaders(b []byte, table amqp.Table) (_ []byte, err error) {
	for name, value := range table {
		if name == PublishHeader {
			continue
		}
		if b, err = appendField(b, name, value); err != nil {
			return b, err
		}
	}
	return b, nil
}

func appendTable(b []byte, table amqp.Table) (_ []byte, err error) {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	for name, value := range table {
		if b, err = appendField(b, name, value); err != nil {
			return b, err
		}
	}
	return setSize(b, at), nil
}

func appendField(b []byte, name string, value any) (_ []byte, err error) {
	if b, err = appendName(b, name); err != nil {
		return b, err
	}
	if b, err = appendValue(b, value); err != nil {
		return b, fmt.Errorf("header %q: %w", name, err)
	}
	return b, nil
}

func appendName(b []byte, name string) ([]byte, error) {
	if len(name) > MaxShortString {
		return b, TooLarge("header name", len(name), MaxShortString)
	}
	return appendShortString(b, name), nil
}

// appendShortString appends a string and its length. The string must have at most
// MaxShortString bytes.
func appendShortString(b []byte, s string) []byte {
	return append(append(b, byte(len(s))), s...)
}

func appendText(b []byte, s string) []byte {
	b = append(b, 'S')
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// setSize stores, in the four bytes at b[at:], the number of bytes that follow them.
func setSize(b []byte, at int) []byte {
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

func appendValue(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case string:
		return appendText(b, v), nil
	case []byte:
		b = binary.BigEndian.AppendUint32(append(b, 'x'), uint32(len(v)))
		return append(b, v...), nil
	case nil:
		return append(b, 'V'), nil
	case bool:
		if v {
			return append(b, 't', 1), nil
		}
		return append(b, 't', 0), nil
	case amqp.Table:
		return appendTable(append(b, 'F'), v)
	case []any:
		return appendArray(append(b, 'A'), v)
	case amqp.Decimal:
		return binary.BigEndian.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value)), nil
	case time.Time:
		return binary.BigEndian.AppendUint64(append(b, 'T'), uint64(v.Unix())), nil
	}
	return appendNumber(b, value)
}

func appendNumber(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case byte:
		return append(b, 'B', v), nil
	case int8:
		return append(b, 'b', byte(v)), nil
	case int16:
		return binary.BigEndian.AppendUint16(append(b, 's'), uint16(v)), nil
	case int:
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(v)), nil
	case int32:
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(v)), nil
	case int64:
		return binary.BigEndian.AppendUint64(append(b, 'l'), uint64(v)), nil
	case float32:
		return binary.BigEndian.AppendUint32(append(b, 'f'), math.Float32bits(v)), nil
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 'd'), math.Float64bits(v)), nil
	}
	return b, &EncodeError{reason: fmt.Sprintf("AMQP has no type for a value of type %T; use a string", value)}
}

func appendArray(b []byte, items []any) (_ []byte, err error) {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	for _, item := range items {
		if b, err = appendValue(b, item); err != nil {
			return b, err
		}
	}
	return setSize(b, at), nil
}
