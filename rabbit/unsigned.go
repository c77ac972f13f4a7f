package rabbit

import "encoding/binary"

// appendReadable appends a frame as amqp091 can read it. It does not know the
// unsigned numbers of 16 and 32 bits, which other clients send in headers, and
// gives the connection up over them; and again, because the message comes back.
// So it gets to read the next larger ones with a sign.
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
		b = appendSigned(b, &fields)
	}
	return setSize(b, at)
}

// appendSigned takes the next value and appends it, with a sign.
func appendSigned(b []byte, from *wire) []byte {
	value := *from
	switch kind := from.uint8(); kind {
	case 'u':
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(from.uint16()))
	case 'i':
		return binary.BigEndian.AppendUint64(append(b, 'l'), uint64(from.uint32()))
	case 'F', 'A':
		return appendSized(append(b, kind), from.take(int(from.uint32())), kind == 'F')
	}
	*from = value
	from.value()
	return append(b, value[:len(value)-len(*from)]...)
}
