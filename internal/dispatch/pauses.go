package dispatch

import (
	"hash/maphash"
	"slices"
	"time"
)

// Pauses are the topics and tenants that an operator has paused. Both lists are in
// alphabetical order.
type Pauses struct{ Topics, Tenants []string }

// None reports whether nothing is paused.
func (p Pauses) None() bool { return len(p.Topics)+len(p.Tenants) == 0 }

func (p Pauses) equal(other Pauses) bool {
	return slices.Equal(p.Topics, other.Topics) && slices.Equal(p.Tenants, other.Tenants)
}

// Include reports whether messages of a topic and tenant are paused.
func (p Pauses) Include(topic, tenant string) bool {
	return slices.Contains(p.Topics, topic) || tenant != "" && slices.Contains(p.Tenants, tenant)
}

// paused prevents the sending of paused messages, and of later messages with the same
// keys. Paused rows without a key are not read. Paused rows with a key are read without
// their contents, once in each sweep from the start of the outbox. The Scheduler does
// not keep these rows in memory. Instead, heldKeys contains the position of the first
// paused row of each key, and later rows of the key are ignored. When the pauses
// change, a sweep from the start reads all rows again.
type paused struct {
	pauses   Pauses
	heldKeys map[uint64]int64 // maps the hash of a key to the position of the key's first paused row
	seed     maphash.Seed
}

// hold records that a row is paused. The parameters are the key and the position of the
// row.
func (p *paused) hold(key string, position int64) {
	if key == "" {
		return
	}
	if p.heldKeys == nil {
		p.heldKeys, p.seed = map[uint64]int64{}, maphash.MakeSeed()
	}
	hash := maphash.String(p.seed, key)
	if first, ok := p.heldKeys[hash]; !ok || position < first {
		p.heldKeys[hash] = position
	}
}

// held reports whether the given key has a paused message, for which the later messages
// of the key wait.
func (p *paused) held(key string) bool {
	if p.heldKeys == nil {
		return false
	}
	_, ok := p.heldKeys[maphash.String(p.seed, key)]
	return ok
}

// holds reports whether m must wait for an earlier, paused message of its key. If m
// blocks its key, it does not wait, because the other messages of the key wait for m.
func (p *paused) holds(m *Message) bool {
	if p.heldKeys == nil || m.Key == "" || m.BlocksKey || m.Due {
		return false
	}
	first, ok := p.heldKeys[maphash.String(p.seed, m.Key)]
	return ok && first < m.Position
}

// keep returns the rows that can be sent now. It leaves out the paused rows, and the
// rows that wait for an earlier, paused row of their key. It remembers the keys of the
// paused rows, so that later reads also leave out the rows that wait.
func (p *paused) keep(rows []*Message) []*Message {
	if p.pauses.None() && p.heldKeys == nil {
		return rows
	}
	for _, m := range rows {
		if m.Paused {
			p.hold(m.Key, m.Position)
		}
	}
	return slices.DeleteFunc(rows, func(m *Message) bool { return m.Paused || p.holds(m) })
}

// setPauses sets the pauses, and reports whether they have changed. If so, the next
// sweep begins at the start of the outbox.
func (s *Scheduler) setPauses(pauses Pauses) (changed bool) {
	if s.paused.pauses.equal(pauses) {
		return false
	}
	s.paused.pauses = pauses
	s.Rescan()
	s.reading.next = time.Time{}
	return true
}

// holdBack removes m from memory, because m was paused after it was read. It also
// removes the later messages of the key of m.
func (s *Scheduler) holdBack(m *Message) {
	q := m.queue
	if q == nil {
		s.buffer.forget(m)
		return
	}
	s.paused.hold(m.Key, m.Position)
	if len(q.waiting) > 0 && q.waiting[0].Position < m.Position { // committed late
		s.rewind(q.waiting[0].Position - 1)
	}
	s.buffer.dropAll(q)
	delete(s.buffer.queues, q.key)
}
