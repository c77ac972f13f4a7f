package parked

import (
	"github.com/ThreeDotsLabs/watermill/message"
)

// Batch contains messages of one topic for one subscription, in the form in which the
// table stores them. While one batch is being stored, another one can be filled.
type Batch struct {
	consumer, topic string
	keyOrder        bool

	unordered rows
	ordered   rows     // messages with an ordering key; none if the subscription does not keep their order
	keys      []string // ordering key of each element of ordered
}

// NewBatch returns an empty batch.
func NewBatch(topic string, to Subscription) *Batch {
	return &Batch{consumer: Clean(to.Consumer, MaxName), topic: Clean(topic, MaxName), keyOrder: to.KeyOrder}
}

// Add copies a message into the batch.
func (b *Batch) Add(msg *message.Message) {
	key := OrderingKey(msg)
	if !b.keyOrder || key == "" {
		b.unordered.add(msg)
		return
	}
	b.ordered.add(msg)
	b.keys = append(b.keys, key)
}

// Bytes returns the total size of the envelopes in the batch.
func (b *Batch) Bytes() int { return len(b.unordered.envelopes) + len(b.ordered.envelopes) }

// rows contains messages as the arguments of one statement. All values of a binary
// column are joined into one argument, which the statement splits into the values. A
// list of byte strings is not used, because each driver encodes such a list in a
// different way.
type rows struct {
	ids, tenants       []string
	labels             [4][]string // one list for each column of labelColumns
	starts, lengths    []int64
	digests, envelopes []byte
}

func (r *rows) add(msg *message.Message) {
	r.ids = append(r.ids, Clean(msg.UUID, MaxName))
	r.tenants = append(r.tenants, TenantOf(msg))
	for i, label := range labelsOf(msg) {
		r.labels[i] = append(r.labels[i], label)
	}
	r.digests = append(r.digests, Digest(msg)...)
	start := len(r.envelopes)
	r.envelopes = appendEnvelope(r.envelopes, msg)
	r.starts = append(r.starts, int64(start)+1) // SQL counts from 1
	r.lengths = append(r.lengths, int64(len(r.envelopes)-start))
}

// keysOfBatches returns the ordering key of each ordered message in the batches.
func keysOfBatches(batches ...*Batch) []Key {
	var keys []Key
	for _, b := range batches {
		for _, key := range b.keys {
			keys = append(keys, Key{b.consumer, b.topic, key})
		}
	}
	return keys
}
