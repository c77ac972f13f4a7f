package rabbit

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Field tables are encoded as amqp091 encodes them, which is RabbitMQ's reading
// of the protocol: https://www.rabbitmq.com/amqp-0-9-1-errata#section_3

// appendTable encodes a table, but leaves out what is called except.
func appendTable(b []byte, table amqp.Table, except string) ([]byte, error) {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b, err := appendFields(b, table, except)
	return setSize(b, at), err
}

func appendFields(b []byte, table amqp.Table, except string) (_ []byte, err error) {
	for name, value := range table {
		if name == except {
			continue
		}
		if b, err = appendName(b, name); err != nil {
			return b, err
		}
		if b, err = appendValue(b, value); err != nil {
			return b, fmt.Errorf("header %q: %w", name, err)
		}
	}
	return b, nil
}

func appendName(b []byte, name string) ([]byte, error) {
	if len(name) > maxShortString {
		return b, tooLarge("header name of %d bytes; the limit is %d", len(name), maxShortString)
	}
	return appendShort(b, name), nil
}

// appendShort encodes a text that has been checked to be short.
func appendShort(b []byte, s string) []byte {
	return append(append(b, byte(len(s))), s...)
}

func appendText(b []byte, s string) []byte {
	b = append(b, 'S')
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// setSize writes at a place left free how much has come after it.
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
		return appendTable(append(b, 'F'), v, "")
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
	return b, &limitError{ErrInvalid, fmt.Sprintf("values of type %T cannot be sent", value)}
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
