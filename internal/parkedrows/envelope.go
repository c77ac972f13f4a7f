package parkedrows

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// envelopeVersion is the first byte of an envelope. An envelope is a message in one
// byte string: the version, then id, metadata and payload. Each part is preceded by its
// length. An envelope keeps every byte, including NUL and invalid UTF-8, which a text
// column and JSON cannot store.
const envelopeVersion = 1

var errEnvelope = errors.New("parked: the envelope is damaged")

// Encode returns msg as an envelope. Equal messages have equal envelopes: the metadata is sorted.
func Encode(msg *message.Message) []byte { return appendEnvelope(nil, msg) }

func appendEnvelope(b []byte, msg *message.Message) []byte {
	size := 16 + len(msg.UUID) + len(msg.Payload)
	keys := make([]string, 0, len(msg.Metadata))
	for key, value := range msg.Metadata {
		keys = append(keys, key)
		size += 8 + len(key) + len(value)
	}
	slices.Sort(keys)

	b = slices.Grow(b, size)
	b = append(b, envelopeVersion)
	b = appendString(b, msg.UUID)
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, key := range keys {
		b = appendString(b, key)
		b = appendString(b, msg.Metadata[key])
	}
	return appendString(b, string(msg.Payload))
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// Decode returns the message in an envelope, or an error if the envelope is damaged.
func Decode(envelope []byte) (*message.Message, error) {
	if len(envelope) == 0 || envelope[0] != envelopeVersion {
		return nil, fmt.Errorf("%w: unknown version", errEnvelope)
	}
	rest := reader{b: envelope[1:]}
	msg := message.NewMessage(string(rest.bytes()), nil)
	for range rest.number() {
		if rest.damaged {
			break
		}
		key := string(rest.bytes())
		msg.Metadata[key] = string(rest.bytes())
	}
	msg.Payload = slices.Clone(rest.bytes())
	if rest.damaged || len(rest.b) != 0 {
		return nil, errEnvelope
	}
	return msg, nil
}

type reader struct {
	b       []byte
	damaged bool
}

func (r *reader) number() uint64 {
	n, length := binary.Uvarint(r.b)
	if length <= 0 {
		r.damaged = true
		return 0
	}
	r.b = r.b[length:]
	return n
}

func (r *reader) bytes() []byte {
	n := r.number()
	if n > uint64(len(r.b)) {
		r.damaged = true
		return nil
	}
	value := r.b[:n]
	r.b = r.b[n:]
	return value
}

const digestSize = sha256.Size

// Digest returns the SHA-256 hash of the id and the payload of msg. Digest ignores the metadata,
// because a redelivered copy can have different metadata.
func Digest(msg *message.Message) []byte {
	h := sha256.New()
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(msg.UUID)))
	_, _ = h.Write(length[:])
	_, _ = h.Write([]byte(msg.UUID))
	_, _ = h.Write(msg.Payload)
	return h.Sum(nil)
}

// Snapshot returns a copy of msg that a handler cannot change, and that cannot be acked.
func Snapshot(msg *message.Message) *message.Message {
	return &message.Message{UUID: msg.UUID, Metadata: maps.Clone(msg.Metadata), Payload: slices.Clone(msg.Payload)}
}

// Restore copies id, metadata and payload of the snapshot to msg.
func Restore(msg, snapshot *message.Message) {
	msg.UUID = snapshot.UUID
	msg.Metadata = maps.Clone(snapshot.Metadata)
	msg.Payload = slices.Clone(snapshot.Payload)
}
