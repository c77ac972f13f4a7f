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

// Topics, which are also the names of exchanges and consumers.
//
// A message of the topic ledger goes to two queues: the consumer's and the recorder's.
// The consumer of the ledger handles each message in its own transaction.
//
// A message of the topic notices goes to one queue. If this queue is missing, the message
// is unroutable. The consumer of notices is durable, and handles batches.
//
// The consumer of accounts compares versions and business keys. Only some faults write
// messages for it.
const (
	ledger   = "ledger"
	notices  = "notices"
	accounts = "accounts"
)

// topics contains the topics of the first service.
var topics = []string{ledger, notices, accounts, replies}

// Kinds of messages. The handler treats each kind differently.
const (
	plain         = "plain"
	hopeless      = "hopeless"  // the handler fails
	panicking     = "panicking" // the handler panics
	exiting       = "exiting"   // the handler calls os.Exit
	timingOut     = "timing-out"
	leavingOpen   = "leaving-open"
	endingSession = "ending-session"
	endingTx      = "ending-tx" // the handler rolls its transaction back and begins another
	hoarding      = "hoarding"  // the handler writes to the small disk
	stumbling     = "stumbling" // the handler fails the first attempts
	intended      = "intended"  // the handler sends a mail
	slow          = "slow"      // the handler takes longer than the broker waits for an ack
	oversized     = "oversized" // larger than the broker accepts
	bloated       = "bloated"   // has a header that the outbox refuses
)

const (
	headerKind   = "chaos_kind"
	headerNumber = "chaos_number"

	// headerRequest is the metadata field with the business key of a message for accounts.
	// Without this field, the key is the id of the message.
	headerRequest = "chaos_request"
)

// mostBody is the largest body in bytes that the broker accepts, as this test
// configures it.
const mostBody = 512 << 10

// payload returns a payload that depends only on id and kind, so that every receiver can
// check it. Any byte value can occur in it.
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

// echoes reports whether the handler of a message returns another message.
func echoes(topic, kind, id string) bool {
	sum := sha256.Sum256([]byte(id))
	return topic == ledger && kind == plain && sum[31] < 26
}

func echo(id string) string { return id + "+echo" }

// event is one message that a writer stores in the outbox, together with a business
// row.
type event struct {
	id, kind, key string
	number        int64 // number of the event within its key, from 1

	to     string // topic; empty for the ledger or accounts
	tenant string

	// These fields are set only if the topic is "accounts".
	account string // aggregate whose version is number
	request string // business key
}

func (e event) topic() string {
	if e.to != "" {
		return e.to
	}
	if e.account != "" || e.request != "" {
		return accounts
	}
	return ledger
}

func (e event) message() *message.Message {
	msg := message.NewMessage(e.id, payload(e.id, e.kind))
	msg.Metadata.Set(headerKind, e.kind)
	if e.key != "" {
		outbox.SetOrderingKey(msg, e.key)
		msg.Metadata.Set(headerNumber, strconv.FormatInt(e.number, 10))
	}
	if e.tenant != "" {
		outbox.SetTenant(msg, e.tenant)
	}
	if e.account != "" {
		outbox.SetAggregate(msg, "account", e.account, e.number)
	}
	if e.request != "" {
		msg.Metadata.Set(headerRequest, e.request)
	}
	if e.kind == bloated {
		msg.Metadata.Set("bloat", strings.Repeat("x", 70<<10))
	}
	return msg
}
