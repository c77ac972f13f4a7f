package dispatch

import (
	"hash/maphash"
	"slices"
	"time"
)

// Pauses are the topics and tenants that an operator has paused, each list in
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

// paused keeps messages of paused topics and tenants from being sent, and the later
// messages of their keys. Paused rows without a key are not read. Paused rows with a
// key are read without their contents, once for each sweep from the start of the
// outbox. They are not kept: heldKeys remembers the first one of each key, and later
// rows of the key are ignored. When the pauses change, a sweep from the start finds all
// rows again.
type paused struct {
	pauses   Pauses
	heldKeys map[uint64]int64 // the lowest position of a paused row, by the hash of its key
	seed     maphash.Seed
}

// hold records that a row is paused.
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

// held reports whether messages of a key wait because an earlier one is paused.
func (p *paused) held(key string) bool {
	if p.heldKeys == nil {
		return false
	}
	_, ok := p.heldKeys[maphash.String(p.seed, key)]
	return ok
}

// holds reports whether m must wait for an earlier message of its key that is paused. A
// message that blocks its key does not wait, because the earlier one waits for it.
func (p *paused) holds(m *Message) bool {
	if p.heldKeys == nil || m.Key == "" || m.BlocksKey || m.Due {
		return false
	}
	first, ok := p.heldKeys[maphash.String(p.seed, m.Key)]
	return ok && first < m.Position
}

// keep removes from rows those that must wait because of a pause, and remembers them.
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

// setPauses makes a sweep from the start of the outbox follow if the pauses have
// changed, and reports whether they have.
func (s *Scheduler) setPauses(pauses Pauses) (changed bool) {
	if s.paused.pauses.equal(pauses) {
		return false
	}
	s.paused.pauses = pauses
	s.Rescan()
	s.reading.next = time.Time{}
	return true
}

// holdBack removes a message that was paused after it was read, with the later messages
// of its key.
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
