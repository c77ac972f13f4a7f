package parked

import (
	"github.com/ThreeDotsLabs/watermill/message"
)

// Batch is messages of one topic in the form in which they are stored for one
// subscription. It can be made while another one is being stored.
type Batch struct {
	consumer, topic string
	keyOrder        bool

	free    rows
	inOrder rows     // those with an ordering key, if the subscription keeps its order
	keys    []string // of these
}

// NewBatch returns an empty batch.
func NewBatch(topic string, to Subscription) *Batch {
	return &Batch{consumer: Clean(to.Consumer, MaxName), topic: Clean(topic, MaxName), keyOrder: to.KeyOrder}
}

// Add adds a message, which is not changed and not kept.
func (b *Batch) Add(msg *message.Message) {
	key := OrderingKey(msg)
	if !b.keyOrder || key == "" {
		b.free.add(msg)
		return
	}
	b.inOrder.add(msg)
	b.keys = append(b.keys, key)
}

// Bytes is how much is to be stored.
func (b *Batch) Bytes() int { return len(b.free.envelopes) + len(b.inOrder.envelopes) }

// rows is messages as one statement takes them. What is of any bytes goes in
// one string of bytes, of which the statement takes the pieces: arrays of bytes
// are written differently for every driver.
type rows struct {
	ids, tenants       []string
	starts, lengths    []int64
	digests, envelopes []byte
}

func (r *rows) add(msg *message.Message) {
	r.ids = append(r.ids, Clean(msg.UUID, MaxName))
	r.tenants = append(r.tenants, TenantOf(msg))
	r.digests = append(r.digests, Digest(msg)...)
	start := len(r.envelopes)
	r.envelopes = appendEnvelope(r.envelopes, msg)
	r.starts = append(r.starts, int64(start)+1) // SQL counts from 1
	r.lengths = append(r.lengths, int64(len(r.envelopes)-start))
}

// keysOfBatches is the key of each message that has a place in its order.
func keysOfBatches(batches ...*Batch) []Key {
	var keys []Key
	for _, b := range batches {
		for _, key := range b.keys {
			keys = append(keys, Key{b.consumer, b.topic, key})
		}
	}
	return keys
}
