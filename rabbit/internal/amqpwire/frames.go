package amqpwire

import (
	"encoding/binary"
)

// What publishing needs of https://www.rabbitmq.com/amqp-0-9-1-reference
const (
	frameMethod    = 1
	frameHeader    = 2
	frameBody      = 3
	frameHeartbeat = 8
	frameEnd       = 0xCE

	classConnection = 10
	classChannel    = 20
	classBasic      = 60
	classConfirm    = 85

	// Each method number includes its class.
	connectionTune   = classConnection<<16 | 30
	connectionTuneOk = classConnection<<16 | 31
	connectionClose  = classConnection<<16 | 50
	channelOpen      = classChannel<<16 | 10
	channelOpenOk    = classChannel<<16 | 11
	channelClose     = classChannel<<16 | 40
	channelCloseOk   = classChannel<<16 | 41
	basicPublish     = classBasic<<16 | 40
	basicReturn      = classBasic<<16 | 50
	basicAck         = classBasic<<16 | 80
	basicNack        = classBasic<<16 | 120
	confirmSelect    = classConfirm<<16 | 10
	confirmSelectOk  = classConfirm<<16 | 11

	frameHead = 1 + 2 + 4 // bytes before the payload: type, channel, size
)

var heartbeat = [...]byte{frameHeartbeat, 0, 0, 0, 0, 0, 0, frameEnd}

// Call endFrame with the index of this head to complete the frame.
func beginFrame(b []byte, kind byte, channel uint16) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint16(b, channel)
	return append(b, 0, 0, 0, 0)
}

func endFrame(b []byte, began int) []byte {
	return append(setSize(b, began+3), frameEnd)
}

func appendMethod(b []byte, channel uint16, method uint32, arguments ...byte) []byte {
	began := len(b)
	b = beginFrame(b, frameMethod, channel)
	b = binary.BigEndian.AppendUint32(b, method)
	return endFrame(append(b, arguments...), began)
}

// The body is split into frames of up to frameSize bytes.
func appendPublish(b []byte, channel uint16, number uint64, exchange, key string, c *Content, frameSize int) []byte {
	const mandatory = 1
	began := len(b)
	b = beginFrame(b, frameMethod, channel)
	b = binary.BigEndian.AppendUint32(b, basicPublish)
	b = append(b, 0, 0) // reserved
	b = appendShortString(b, exchange)
	b = appendShortString(b, key)
	b = endFrame(append(b, mandatory), began)

	began = len(b)
	b = beginFrame(b, frameHeader, channel)
	b = append(b, 0, classBasic, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(len(c.Body)))
	properties := len(b)
	b = append(b, c.properties...)
	putNumber(b[properties+c.numberAt:], number)
	b = endFrame(b, began)

	for body := c.Body; len(body) > 0; {
		piece := body[:min(len(body), frameSize-frameOverhead)]
		began = len(b)
		b = append(beginFrame(b, frameBody, channel), piece...)
		b = endFrame(b, began)
		body = body[len(piece):]
	}
	return b
}

type frame struct {
	kind    byte
	channel uint16
	payload []byte
}

// b contains exactly one frame.
func parseFrame(b []byte) frame {
	return frame{kind: b[0], channel: binary.BigEndian.Uint16(b[1:]), payload: b[frameHead : len(b)-1]}
}

func (f frame) method() (method uint32, arguments reader) {
	if f.kind != frameMethod || len(f.payload) < 4 {
		return 0, nil
	}
	return binary.BigEndian.Uint32(f.payload), f.payload[4:]
}

// frameLength returns 0 if b does not contain the complete head of a frame yet.
func frameLength(b []byte) int {
	if len(b) < frameHead {
		return 0
	}
	return frameOverhead + int(binary.BigEndian.Uint32(b[3:]))
}

// A read of truncated data returns zero values.
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

// value returns "" for a value of any type but string.
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

// skipToHeaders skips to the header table of a content header, and reports whether it has one.
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

// textHeader returns the named string header in a content header, or "".
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

// appendWidened replaces number types in headers that RabbitMQ accepts, other clients send, and
// amqp091 does not know, by wider ones. Otherwise amqp091 closes the connection each time the
// broker delivers such a message, see https://github.com/rabbitmq/amqp091-go/issues/302
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

// If named is false, the fields are the items of an array.
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
