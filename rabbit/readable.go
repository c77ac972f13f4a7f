package rabbit

import "encoding/binary"

// appendReadable appends a frame as amqp091 can read it. It does not know all
// types of numbers that RabbitMQ lets other clients send in headers, and gives
// the connection up over them; and again, because the message comes back. So it
// gets to read numbers that it knows, and that are wide enough.
// https://github.com/rabbitmq/amqp091-go/issues/302
func appendReadable(b, raw []byte) []byte {
	if raw[0] != frameHeader || raw[len(raw)-1] != frameEnd {
		return append(b, raw...)
	}
	f := frameOf(raw)
	rest := wire(f.payload)
	if !rest.toHeaders() {
		return append(b, raw...)
	}
	before := f.payload[:len(f.payload)-len(rest)]
	headers := rest.take(int(rest.uint32()))
	if headers == nil {
		return append(b, raw...)
	}
	began := len(b)
	b = append(appendFrame(b, f.kind, f.channel), before...)
	b = appendSized(b, headers, true)
	return endFrame(append(b, rest...), began)
}

// appendSized appends the fields of a table, or the items of an array, which
// have no names, behind their size.
func appendSized(b []byte, fields wire, named bool) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	for len(fields) > 0 {
		if named {
			b = appendShort(b, fields.short())
		}
		b = appendKnown(b, &fields)
	}
	return setSize(b, at)
}

// appendKnown takes the next value and appends it as one of a type that amqp091
// knows.
func appendKnown(b []byte, from *wire) []byte {
	value := *from
	switch kind := from.uint8(); kind {
	case 'u':
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(from.uint16()))
	case 'i':
		return binary.BigEndian.AppendUint64(append(b, 'l'), uint64(from.uint32()))
	case 'L': // the same by another name
		return binary.BigEndian.AppendUint64(append(b, 'l'), from.uint64())
	case 'F', 'A':
		return appendSized(append(b, kind), from.take(int(from.uint32())), kind == 'F')
	}
	*from = value
	from.value()
	return append(b, value[:len(value)-len(*from)]...)
}
