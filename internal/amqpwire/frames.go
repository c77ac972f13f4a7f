package amqpwire

import "encoding/binary"

// Frames and methods of AMQP 0-9-1 that publishing needs. See
// https://www.rabbitmq.com/amqp-0-9-1-reference
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

// beginFrame appends the head of a frame. Call endFrame with the index of this head to
// complete the frame.
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

// appendPublish appends the frames of a publish with the mandatory flag: method,
// content header, body. It splits the body into frames of up to frameSize bytes.
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

// frame is an AMQP frame that was received, or that will be sent.
type frame struct {
	kind    byte
	channel uint16
	payload []byte
}

// parseFrame parses b, which must contain exactly one frame.
func parseFrame(b []byte) frame {
	return frame{kind: b[0], channel: binary.BigEndian.Uint16(b[1:]), payload: b[frameHead : len(b)-1]}
}

// method returns the method of the frame and its arguments, or 0 if the frame
// has no method.
func (f frame) method() (method uint32, arguments reader) {
	if f.kind != frameMethod || len(f.payload) < 4 {
		return 0, nil
	}
	return binary.BigEndian.Uint32(f.payload), f.payload[4:]
}

// frameLength returns the length of the first frame in b, in bytes. It returns 0 if b
// does not contain the complete head of the frame yet.
func frameLength(b []byte) int {
	if len(b) < frameHead {
		return 0
	}
	return frameOverhead + int(binary.BigEndian.Uint32(b[3:]))
}
