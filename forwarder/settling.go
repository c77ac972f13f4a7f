package forwarder

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/adaptive"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// deathsAtOnce bounds one settlement: dead letters are moved one by one, and
// the confirmed ones of all others wait for that.
const deathsAtOnce = 100

// settling is what waits to be recorded, while at most one settlement is under
// way: whatever is answered meanwhile goes into the next one.
type settling struct {
	waiting settlement
	since   time.Time // when the first of waiting.confirmed was confirmed
	urgent  bool      // successors of a confirmed one cannot be read before
	busy    bool
	unsure  int // confirmed ones in the settlement under way
	removal adaptive.Limit
	charges adaptive.Limit
	fault   fault
	err     error // of the last settlement
}

// settle records what is known.
func (l *loop) settle(now time.Time) {
	s := &l.settling
	if s.busy || s.waiting.empty() || s.fault.waits(l, now) {
		return
	}
	if due := s.since.Add(gather); now.Before(due) && l.canGather() {
		l.at(due)
		return
	}
	batch := s.waiting
	s.waiting, s.urgent = settlement{}, false
	if len(batch.deaths) > deathsAtOnce {
		s.waiting.deaths = slices.Clone(batch.deaths[deathsAtOnce:])
		batch.deaths = batch.deaths[:deathsAtOnce]
	}
	if most := s.removal.Of(len(batch.confirmed)); len(batch.confirmed) > most {
		s.waiting.confirmed = slices.Clone(batch.confirmed[most:])
		batch.confirmed = batch.confirmed[:most]
	}
	if most := s.charges.Of(len(batch.charges)); len(batch.charges) > most {
		s.waiting.charges = slices.Clone(batch.charges[most:])
		batch.charges = batch.charges[:most]
	}
	s.busy, s.unsure = true, len(batch.confirmed)
	seen, _ := l.cursor.sights()
	l.ask(func(ctx context.Context) func() {
		began := time.Now()
		done := l.store.settle(ctx, batch, l.config.AfterDead)
		l.instruments.settlements.Record(time.Since(began), telemetry.Succeeded(done.err))
		return func() {
			if done.wrote {
				l.cursor.wrote(seen)
			}
			l.recorded(batch, done)
		}
	})
}

// gather is how long confirmed messages wait for others, while there are more
// to come, to be deleted in one transaction.
const gather = 20 * time.Millisecond

// canGather says whether nobody waits for what is to be recorded.
func (l *loop) canGather() bool {
	s := &l.settling
	return !s.urgent && !l.stopping && l.buffer.orphans == 0 && l.wire.inFlight > 0 &&
		len(s.waiting.charges) == 0 && len(s.waiting.deaths) == 0 && len(s.waiting.confirmed) < l.config.BatchSize/2
}

// recorded forgets what was settled and keeps the rest for the next time.
func (l *loop) recorded(batch settlement, done settled) {
	s := &l.settling
	s.busy, s.unsure, s.err = false, 0, done.err
	l.instruments.recorded(batch, done)
	if done.err != nil {
		s.fault.failed(l, "Outcomes could not be recorded", done.err)
	} else {
		l.worked(&s.fault, "Outcomes could be recorded")
	}
	if done.vanished {
		l.lookAgain(batch)
	}

	if len(batch.confirmed) > 0 {
		s.removal.Did(done.confirmed)
	}
	if len(batch.charges) > 0 {
		s.charges.Did(done.charges)
	}
	if done.confirmed {
		for _, r := range batch.confirmed {
			l.finished(r)
		}
	} else {
		s.waiting.confirmed = append(batch.confirmed, s.waiting.confirmed...)
	}
	for i, d := range batch.deaths {
		switch {
		case i < done.deaths:
			l.config.Logger.Error("Message is dead", errors.New(d.err), watermill.LogFields{
				"message_uuid": d.row.id, "topic": d.row.topic, "reason": d.reason, "attempt": d.row.attempts + 1, "size": d.size,
			})
			l.finished(d.row)
		case d.row.orphan:
			l.buffer.forget(d.row)
		default:
			s.waiting.deaths = append(s.waiting.deaths, d)
		}
	}
	for _, c := range batch.charges {
		switch {
		case done.charges:
			l.finished(c.row)
		case c.row.orphan:
			l.buffer.forget(c.row)
		default:
			s.waiting.charges = append(s.waiting.charges, c)
		}
	}
}

// finished forgets a row whose outcome is recorded, and has its successors
// read again if they were dropped or held.
func (l *loop) finished(r *row) {
	l.buffer.forget(r)
	if r.lane != nil {
		l.buffer.unbar(r.lane)
		r.lane = nil
	}
}

// lookAgain has rows read again that did not change as they should: somebody
// has removed them, or holds a lock on them.
func (l *loop) lookAgain(batch settlement) {
	lowest := int64(everything)
	for _, c := range batch.charges {
		lowest = min(lowest, c.row.position)
	}
	for _, d := range batch.deaths {
		lowest = min(lowest, d.row.position)
	}
	l.rewind(lowest - 1)
}

// clean makes an error's text fit for a text column.
func clean(err error) string { return parked.Clean(err.Error(), 2000) }
