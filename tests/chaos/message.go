package main

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
)

// Topics, which are also the names of exchanges and of consumers. What reaches
// the ledger is recorded, so its messages are in two queues. Notices have only
// one: without it they are unroutable. The ledger's consumer handles messages
// directly, one in a transaction; that of notices is durable, and handles batches.
const (
	ledger  = "ledger"
	notices = "notices"
)

// Kinds of message, by what handling them does.
const (
	plain     = "plain"
	hopeless  = "hopeless"  // the handler fails
	panicking = "panicking" // the handler panics
	exiting   = "exiting"   // the handler ends the process
	timingOut = "timing-out"
	slow      = "slow"      // the handler takes longer than the broker waits for an ack
	oversized = "oversized" // the broker does not take it
	bloated   = "bloated"   // the outbox does not take its header
)

const (
	headerKind   = "chaos_kind"
	headerNumber = "chaos_number"
)

// mostBody is what the broker takes; it is told so.
const mostBody = 512 << 10

// payload follows from id and kind, so whoever sees a message can tell whether
// it is intact. It has every byte.
func payload(id, kind string) []byte {
	sum := sha256.Sum256([]byte(id))
	random := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])))
	size := 20 + random.IntN(500)
	if kind == oversized {
		size = mostBody + 1000
	}
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	return body
}

// echoes says that the handler of a message sends one itself.
func echoes(topic, kind, id string) bool {
	sum := sha256.Sum256([]byte(id))
	return topic == ledger && kind == plain && sum[31] < 26
}

func echo(id string) string { return id + "+echo" }

// event is a message and what the tables say of it.
type event struct {
	id, kind, key string
	number        int64 // of its key, from 1
}

func (e event) message() *message.Message {
	msg := message.NewMessage(e.id, payload(e.id, e.kind))
	msg.Metadata.Set(headerKind, e.kind)
	if e.key != "" {
		outbox.SetOrderingKey(msg, e.key)
		msg.Metadata.Set(headerNumber, strconv.FormatInt(e.number, 10))
	}
	if e.kind == bloated {
		msg.Metadata.Set("bloat", strings.Repeat("x", 70<<10))
	}
	return msg
}
