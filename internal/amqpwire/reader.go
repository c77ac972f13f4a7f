package amqpwire

import "encoding/binary"

// reader contains received bytes that are not parsed yet. A read past the end returns
// zero values, so truncated data does no harm.
type reader []byte

func (r *reader) next(n int) []byte {
	if n < 0 || n > len(*r) {
		*r = nil
		return nil
	}
	b := (*r)[:n]
	*r = (*r)[n:]
	return b
}

func (r *reader) uint8() byte {
	if b := r.next(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.next(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.next(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.next(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) shortString() string { return string(r.next(int(r.uint8()))) }

// value reads a header value of any type. If the value is a string, it returns the
// string, and "" otherwise.
func (r *reader) value() string {
	switch r.uint8() {
	case 't', 'b', 'B':
		r.next(1)
	case 's', 'u':
		r.next(2)
	case 'I', 'i', 'f':
		r.next(4)
	case 'D':
		r.next(5)
	case 'l', 'L', 'd', 'T':
		r.next(8)
	case 'S':
		return string(r.next(int(r.uint32())))
	case 'x', 'A', 'F':
		r.next(int(r.uint32()))
	case 'V':
	default:
		*r = nil // the size of a value of an unknown type cannot be known
	}
	return ""
}

// skipToHeaders skips the bytes before the header table in the payload of a content
// header frame. It reports whether there is a header table.
func (r *reader) skipToHeaders() bool {
	r.next(contentHeaderOverhead)
	flags := r.uint16()
	for _, before := range [...]uint16{flagContentType, flagContentEncoding} {
		if flags&before != 0 {
			r.shortString()
		}
	}
	return flags&flagHeaders != 0
}

// textHeader returns the named header in the payload of a content header frame. It
// returns "" if there is no such header, or if its value is not a string.
func textHeader(payload []byte, name string) string {
	r := reader(payload)
	if !r.skipToHeaders() {
		return ""
	}
	for table := reader(r.next(int(r.uint32()))); len(table) > 0; {
		found := table.shortString() == name
		if value := table.value(); found {
			return value
		}
	}
	return ""
}
