package dispatch

import (
	"fmt"
	"slices"
	"time"
)

// settle simulates how package forwarder records a Settlement: in one transaction for
// the confirmed messages, one for the charges, and one for each dead letter.
func (w *world) settle(batch *Settlement) {
	if w.plant.settlement != nil {
		w.plant.settlement(w, batch)
	}
	const delay = 20 * time.Millisecond
	process := w.process
	w.later(delay/4, func() {
		xid := w.begin()
		w.later(delay, func() {
			owned := func(slot int64) bool { return w.process == process && w.owned[slot] }
			w.lingers = false
			result := w.record(batch, owned)
			w.tracef("settled: %+v", result)
			if w.process != process {
				w.noteLate(batch)
			}
			if w.lingers {
				w.later(10*delay, func() { w.end(xid) })
			} else {
				w.end(xid)
			}
			if w.plant.settled != nil {
				w.plant.settled(w, &result)
			}
			w.report(process, delay, func() { w.s.Settled(w.now, batch, result) })
		})
	})
}

// noteLate remembers the messages whose deletion was committed after the process had
// ended. The next process may have read them before the deletion.
func (w *world) noteLate(batch *Settlement) {
	for _, m := range batch.Confirmed {
		w.late[m.Position] = true
	}
}

// record changes the tables. Each part may fail before its commit, or the outcome of
// its commit may be unknown.
func (w *world) record(batch *Settlement, owned func(slot int64) bool) (result Settled) {
	if len(batch.Confirmed) > 0 {
		result.Confirmed = w.transaction(&result, func() int { return w.remove(batch.Confirmed, owned) })
	}
	if len(batch.Charges) > 0 {
		charged := 0
		result.Charges = w.transaction(&result, func() int {
			charged = w.charge(batch.Charges, owned)
			return charged
		})
		result.Vanished = charged < len(batch.Charges)
	}
	for _, d := range batch.Deaths {
		moved := 0
		if !w.transaction(&result, func() int { moved = w.moveDead(d, owned); return moved }) {
			break
		}
		result.Deaths++
		result.Vanished = result.Vanished || moved == 0
	}
	return result
}

func (w *world) transaction(result *Settled, work func() (changed int)) bool {
	if w.fails() {
		if w.rng.IntN(2) == 0 {
			work() // the commit succeeded, but the connection was lost before its answer
		} else {
			w.lingers = true // the server has not noticed yet that the connection was lost
		}
		result.Err = errFailed
		return false
	}
	if work() > 0 {
		result.Wrote = true
	}
	return true
}

func (w *world) remove(confirmed []*Message, owned func(slot int64) bool) (removed int) {
	for _, m := range confirmed {
		if !w.stored[m.Position] {
			w.failf("%d is deleted, but the broker has not stored it", m.Position)
		}
		if b := w.blocked[m.Key]; m.BlocksKey && b != nil && b.position == m.Position && owned(m.Slot) {
			delete(w.blocked, m.Key)
		}
		if w.table[m.Position] != nil {
			delete(w.table, m.Position)
			removed++
		}
	}
	return removed
}

func (w *world) charge(charges []Charge, owned func(slot int64) bool) (charged int) {
	for _, c := range charges {
		row := w.table[c.Message.Position]
		if row == nil || !owned(row.Slot) {
			continue
		}
		charged++
		if c.Attempts > 0 {
			w.checkRefused(row)
		}
		row.Attempts = c.Message.Attempts + c.Attempts
		row.due = w.now.Add(c.Delay)
		w.block(row.Key, blockedKey{position: row.Position, successorsAfter: c.SuccessorsAfter})
	}
	return charged
}

// checkRefused checks that the broker has refused a message for which an attempt is
// counted. An attempt may be counted for a message with an unknown outcome although the
// broker has not refused it.
func (w *world) checkRefused(row *stored) {
	if !w.refused[row.Position] && !row.closes && w.profile.unknown == 0 && !w.profile.silent {
		w.failf("an attempt of %d is counted, but the broker has not refused it", row.Position)
	}
}

// block blocks a key. If the key is blocked already, the lower of the two positions
// stays.
func (w *world) block(key string, b blockedKey) {
	if key == "" {
		return
	}
	if old := w.blocked[key]; old != nil {
		if b.position > old.position {
			return
		}
		b.successorsAfter = min(b.successorsAfter, old.successorsAfter)
	}
	w.blocked[key] = &b
}

func (w *world) moveDead(d Death, owned func(slot int64) bool) (moved int) {
	m := d.Message
	row := w.table[m.Position]
	if row == nil || !owned(row.Slot) {
		return 0
	}
	if d.Exhausted {
		w.checkRefused(row)
	}
	if most := policyOf(m.Topic).MaxAttempts; d.Exhausted && m.Attempts != most-1 {
		w.failf("%d of %s is dead after %d refusals, not %d", m.Position, m.Topic, m.Attempts+1, most)
	}
	delete(w.table, m.Position)
	w.dead[m.Position] = true
	if b := w.blocked[m.Key]; w.profile.blockDead {
		w.block(m.Key, blockedKey{position: m.Position, successorsAfter: d.SuccessorsAfter, dead: true})
	} else if b != nil && b.position == m.Position {
		delete(w.blocked, m.Key)
	}
	return 1
}

// tidy unblocks keys whose first message does not exist any more.
func (w *world) tidy() {
	for key, b := range w.blocked {
		if w.table[b.position] == nil && (!b.dead || !w.dead[b.position]) && w.owned[slotOf(key)] {
			delete(w.blocked, key)
		}
	}
}

const topicCount = 3

func slotOf(key string) int64 { return int64(key[len(key)-1]) % slotCount }

// write simulates a transaction that adds rows. It commits later, or never.
func (w *world) write(longest time.Duration) {
	xid := w.begin()
	var rows []*stored
	tenant, size := pick(w.rng, "", "a", "b"), 4
	if w.profile.bulk && w.rng.IntN(4) == 0 {
		tenant, size = "many", 60
	}
	take := func() {
		w.lastPosition++
		row := &stored{Message: Message{
			Position: w.lastPosition, ID: fmt.Sprint(w.lastPosition), Topic: fmt.Sprint("topic", w.rng.IntN(topicCount)),
			Slot: int64(w.rng.IntN(slotCount)), Payload: make([]byte, w.rng.IntN(100)), Tenant: tenant,
		}}
		if w.rng.IntN(3) > 0 {
			keys := w.profile.keys
			if tenant == "many" {
				keys = max(1, keys/4)
			}
			row.Key = fmt.Sprint("key", w.rng.IntN(keys))
			row.Slot = slotOf(row.Key)
		} else if w.rng.IntN(5) == 0 {
			row.due = w.now.Add(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
		}
		switch w.rng.IntN(30) {
		case 0: // with several such messages, a stalled topic recovers too slowly for this test
			row.closes = !w.closing[row.Topic]
			w.closing[row.Topic] = true
		case 1:
			row.invalid = true
		}
		rows = append(rows, row)
	}
	for range 1 + w.rng.IntN(size) {
		w.later(longest/2, func() {
			if w.open[xid] {
				take()
			}
		})
	}
	w.later(longest, func() {
		w.commits++
		if w.rng.IntN(10) > 0 {
			for _, row := range rows {
				row.commit = w.commits
				w.table[row.Position] = row
			}
		}
		w.end(xid)
		if w.rng.IntN(2) == 0 {
			w.s.Hint(w.now)
		}
	})
}

// release unblocks a key that waits for a dead letter. It simulates Letters.Release in
// package dead.
func (w *world) release(key string) {
	if b := w.blocked[key]; b == nil || !b.dead {
		return
	}
	w.tracef("key %q is released", key)
	xid := w.begin()
	w.releasing++
	first := w.first(key)
	w.later(50*time.Millisecond, func() {
		defer w.end(xid)
		w.releasing--
		b := w.blocked[key]
		if b == nil || !b.dead {
			return
		}
		if first = w.first(key); first == nil {
			delete(w.blocked, key)
			return
		}
		if first.due.IsZero() {
			first.due = w.now
		}
		w.blocked[key] = &blockedKey{position: first.Position, successorsAfter: min(first.Position, b.successorsAfter)}
	})
}

// first returns the row of a key that has the lowest position, or nil.
func (w *world) first(key string) (first *stored) {
	for _, row := range w.table {
		if row.Key == key && (first == nil || row.Position < first.Position) {
			first = row
		}
	}
	return first
}

// renew simulates a renewal of the lease. The instance may lose slots and get others.
func (w *world) renew() {
	seen := w.s.Sight()
	orphans := w.orphans()
	process := w.process
	w.inProcess(10*time.Millisecond, func() {
		xid := w.begin()
		w.later(10*time.Millisecond, func() {
			w.end(xid)
			if w.process != process {
				return
			}
			for slot := range int64(slotCount) {
				if w.healed || w.rng.IntN(4) > 0 {
					w.owned[slot] = w.owned[slot] || !slices.Contains(orphans, slot)
				}
			}
			w.report(process, 10*time.Millisecond, func() {
				w.s.Wrote(seen)
				unsettled := w.orphans()
				slots := slices.DeleteFunc(w.leased(), func(slot int64) bool { return slices.Contains(unsettled, slot) })
				w.grant(slots)
			})
		})
	})
}

func (w *world) orphans() []int64 {
	if w.plant.unsettled {
		return nil
	}
	return w.s.OrphanSlots()
}

// lose simulates that another instance gets slots of this instance.
func (w *world) lose(slots ...int64) {
	w.tracef("slots %v are lost", slots)
	for _, slot := range slots {
		w.owned[slot], w.granted[slot] = false, false
	}
	if w.rng.IntN(2) == 0 {
		w.s.Recall()
	}
	if w.plant.lose != nil {
		w.plant.lose(w, &slots)
	}
	w.s.LoseSlots(slots)
}

// otherInstance simulates the instance that owns the lost slots: it publishes one of
// their rows, and records the outcome.
func (w *world) otherInstance() {
	for _, position := range slices.Sorted(func(yield func(int64) bool) {
		for position := range w.table {
			if !yield(position) {
				return
			}
		}
	}) {
		row := w.table[position]
		b := w.blocked[row.Key]
		if w.owned[row.Slot] || row.due.After(w.now) || b != nil && b.position != position || row.closes || row.invalid {
			continue
		}
		if row.Key != "" && b == nil && w.first(row.Key) != row {
			continue
		}
		w.tracef("another instance settles %d", position)
		delete(w.table, position)
		if b != nil {
			delete(w.blocked, row.Key)
		}
		return
	}
}
