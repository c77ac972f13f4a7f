package amqpwire

import "encoding/binary"

// appendWidened appends a frame after changing it so that amqp091 can read it. RabbitMQ
// accepts number types in headers that amqp091 does not know, and other clients send
// them. When amqp091 reads such a header, it closes the connection, and does so again
// each time the broker redelivers the message. Therefore appendWidened replaces these
// numbers with wider numbers of a type that amqp091 knows. See
// https://github.com/rabbitmq/amqp091-go/issues/302
func appendWidened(b, raw []byte) []byte {
	if raw[0] != frameHeader || raw[len(raw)-1] != frameEnd {
		return append(b, raw...)
	}
	f := parseFrame(raw)
	rest := reader(f.payload)
	if !rest.skipToHeaders() {
		return append(b, raw...)
	}
	before := f.payload[:len(f.payload)-len(rest)]
	headers := rest.next(int(rest.uint32()))
	if headers == nil {
		return append(b, raw...)
	}
	began := len(b)
	b = append(beginFrame(b, f.kind, f.channel), before...)
	b = appendWidenedFields(b, headers, true)
	return endFrame(append(b, rest...), began)
}

// appendWidenedFields appends the size and the fields of a table. If named is false,
// the fields are the items of an array, and have no names.
func appendWidenedFields(b []byte, fields reader, named bool) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	for len(fields) > 0 {
		if named {
			b = appendShortString(b, fields.shortString())
		}
		b = appendWidenedValue(b, &fields)
	}
	return setSize(b, at)
}

// appendWidenedValue reads one value, and appends it with a type that amqp091 knows.
func appendWidenedValue(b []byte, from *reader) []byte {
	value := *from
	switch kind := from.uint8(); kind {
	case 'u':
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(from.uint16()))
	case 'i':
		return binary.BigEndian.AppendUint64(append(b, 'l'), uint64(from.uint32()))
	case 'L': // another letter that RabbitMQ uses for a signed 64-bit number
		return binary.BigEndian.AppendUint64(append(b, 'l'), from.uint64())
	case 'F', 'A':
		return appendWidenedFields(append(b, kind), from.next(int(from.uint32())), kind == 'F')
	}
	*from = value
	from.value()
	return append(b, value[:len(value)-len(*from)]...)
}
