package rabbit

import (
	"cmp"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
)

// settle tells the broker what the handler said, and what others have said by
// now.
func (sub *subscription) settle(d *delivery) {
	answered := []*delivery{d}
	for range len(sub.answers) {
		answered = append(answered, <-sub.answers)
	}
	for len(answered) > 0 {
		in := answered[0].in
		others := slices.DeleteFunc(slices.Clone(answered), func(d *delivery) bool { return d.in == in })
		sub.settleOf(in, slices.DeleteFunc(answered, func(d *delivery) bool { return d.in != in }))
		answered = others
	}
}

// settleOf is settle for deliveries of one intake.
func (sub *subscription) settleOf(in *intake, answered []*delivery) {
	in.answer(answered)
	for _, d := range answered {
		switch d.outcome {
		case acked:
			sub.returned.forget(d.msg.UUID)
		case requeued:
			sub.returned.add(d.msg.UUID)
		}
		sub.s.instruments.settledOne(d.outcome, time.Since(d.taken))
		d.cancel()
	}
	sub.held -= len(answered)
	sub.s.inFlight.Add(-int64(len(answered)))
	in.unanswered -= len(answered)
	if in.unanswered == 0 && sub.retired[in] {
		delete(sub.retired, in)
		sub.running.Go(in.close)
	}
}

// answer tells the broker what became of deliveries, unless the channel that
// they came from is gone. Acks that leave no delivery open before them go as
// one.
func (in *intake) answer(answered []*delivery) {
	if in.ctx.Err() != nil {
		for _, d := range answered {
			d.outcome = lost
		}
		return
	}
	slices.SortFunc(answered, func(a, b *delivery) int { return cmp.Compare(a.raw.DeliveryTag, b.raw.DeliveryTag) })
	var acks []*delivery
	for _, d := range answered {
		if at, ok := slices.BinarySearch(in.open, d.raw.DeliveryTag); ok {
			in.open = slices.Delete(in.open, at, at+1)
		}
		if d.acked {
			acks = append(acks, d)
		} else {
			d.outcome = in.nack(d)
		}
	}
	together := len(acks)
	if len(in.open) > 0 {
		together, _ = slices.BinarySearchFunc(acks, in.open[0], func(d *delivery, tag uint64) int { return cmp.Compare(d.raw.DeliveryTag, tag) })
	}
	in.ack(acks[:together])
	for n := together; n < len(acks); n++ {
		in.ack(acks[n : n+1])
	}
}

// ack acks deliveries, of which the last stands for all before it that are not
// answered.
func (in *intake) ack(acks []*delivery) {
	if len(acks) == 0 {
		return
	}
	failpoint.Hit("rabbit/ack")
	err := acks[len(acks)-1].raw.Ack(len(acks) > 1)
	failpoint.Hit("rabbit/acked")
	for _, d := range acks {
		d.outcome = sent(acked, err)
	}
}

func (in *intake) nack(d *delivery) (outcome int) {
	if in.sub.s.config.Consume.NoRequeueOnNack {
		return sent(dropped, d.raw.Nack(false, false))
	}
	failpoint.Hit("rabbit/requeue")
	err := d.raw.Nack(false, true)
	failpoint.Hit("rabbit/requeued")
	return sent(requeued, err)
}

// sent is what became of an answer; after an error the end of the channel is on
// its way.
func sent(outcome int, err error) int {
	if err != nil {
		return lost
	}
	return outcome
}
