package rabbit

import "encoding/binary"

// wire is what is still to be read of something that came in. It reads zeros
// past its end: what the broker cuts short is not found, and does no harm.
type wire []byte

func (w *wire) take(n int) []byte {
	if n < 0 || n > len(*w) {
		*w = nil
		return nil
	}
	taken := (*w)[:n]
	*w = (*w)[n:]
	return taken
}

func (w *wire) uint8() byte {
	if b := w.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (w *wire) uint16() uint16 {
	if b := w.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (w *wire) uint32() uint32 {
	if b := w.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (w *wire) uint64() uint64 {
	if b := w.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (w *wire) short() string { return string(w.take(int(w.uint8()))) }

// value skips the value of a field, and returns it if it is a text.
func (w *wire) value() string {
	switch w.uint8() {
	case 't', 'b', 'B':
		w.take(1)
	case 's', 'u':
		w.take(2)
	case 'I', 'i', 'f':
		w.take(4)
	case 'D':
		w.take(5)
	case 'l', 'L', 'd', 'T':
		w.take(8)
	case 'S':
		return string(w.take(int(w.uint32())))
	case 'x', 'A', 'F':
		w.take(int(w.uint32()))
	case 'V':
	default:
		*w = nil // not to be read any further
	}
	return ""
}

// toHeaders skips what is before the headers in the payload of a content
// header's frame. It reports false if there are none.
func (w *wire) toHeaders() bool {
	w.take(contentHeaderOverhead)
	flags := w.uint16()
	for _, before := range [...]uint16{flagContentType, flagContentEncoding} {
		if flags&before != 0 {
			w.short()
		}
	}
	return flags&flagHeaders != 0
}

// textHeader returns the header of that name from the payload of a content
// header's frame, if it is a text.
func textHeader(payload []byte, name string) string {
	w := wire(payload)
	if !w.toHeaders() {
		return ""
	}
	for table := wire(w.take(int(w.uint32()))); len(table) > 0; {
		found := table.short() == name
		if value := table.value(); found {
			return value
		}
	}
	return ""
}
