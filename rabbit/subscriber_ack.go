package rabbit

import (
	"cmp"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
)

// settle sends the ack or nack of d to the broker. It also sends the acks and nacks of
// the other deliveries that wait in the channel sub.handled.
func (sub *subscription) settle(d *delivery) {
	handled := []*delivery{d}
	for range len(sub.handled) {
		handled = append(handled, <-sub.handled)
	}
	for len(handled) > 0 {
		ch := handled[0].channel
		others := slices.DeleteFunc(slices.Clone(handled), func(d *delivery) bool { return d.channel == ch })
		sub.settleOn(ch, slices.DeleteFunc(handled, func(d *delivery) bool { return d.channel != ch }))
		handled = others
	}
}

// settleOn works like settle, for deliveries of one channel.
func (sub *subscription) settleOn(ch *consumeChannel, handled []*delivery) {
	ch.acknowledge(handled)
	for _, d := range handled {
		switch d.outcome {
		case acked:
			sub.requeues.forget(d.msg.UUID)
		case requeued:
			sub.requeues.add(d.msg.UUID)
		}
		sub.s.instruments.countSettled(d.outcome, time.Since(d.handedOut))
		d.cancel()
	}
	sub.inFlight -= len(handled)
	sub.s.inFlight.Add(-int64(len(handled)))
	ch.inFlight -= len(handled)
	if ch.inFlight == 0 && sub.retired[ch] {
		delete(sub.retired, ch)
		sub.running.Go(ch.close)
	}
}

// acknowledge sends acks and nacks. If the channel is lost, it sends nothing. It sends
// one multiple ack for all acked deliveries that come before the first unacked
// delivery, and a separate ack for each later one.
func (ch *consumeChannel) acknowledge(handled []*delivery) {
	if ch.ctx.Err() != nil {
		for _, d := range handled {
			d.outcome = lost
		}
		return
	}
	slices.SortFunc(handled, func(a, b *delivery) int { return cmp.Compare(a.raw.DeliveryTag, b.raw.DeliveryTag) })
	var acks []*delivery
	for _, d := range handled {
		if at, ok := slices.BinarySearch(ch.unacked, d.raw.DeliveryTag); ok {
			ch.unacked = slices.Delete(ch.unacked, at, at+1)
		}
		if d.acked {
			acks = append(acks, d)
		} else {
			d.outcome = ch.nack(d)
		}
	}
	together := len(acks)
	if len(ch.unacked) > 0 {
		together, _ = slices.BinarySearchFunc(acks, ch.unacked[0],
			func(d *delivery, tag uint64) int { return cmp.Compare(d.raw.DeliveryTag, tag) })
	}
	ch.ack(acks[:together])
	for n := together; n < len(acks); n++ {
		ch.ack(acks[n : n+1])
	}
}

// ack sends one ack for all deliveries in the list acks. For several deliveries this is
// a multiple ack, which also acks every earlier delivery of the channel. So the list
// must contain all earlier deliveries that have no ack or nack yet.
func (ch *consumeChannel) ack(acks []*delivery) {
	if len(acks) == 0 {
		return
	}
	failpoint.Hit("rabbit/ack")
	err := acks[len(acks)-1].raw.Ack(len(acks) > 1)
	failpoint.Hit("rabbit/acked")
	for _, d := range acks {
		d.outcome = outcomeUnlessLost(acked, err)
	}
}

func (ch *consumeChannel) nack(d *delivery) (outcome int) {
	if ch.sub.s.config.Consume.NoRequeueOnNack {
		return outcomeUnlessLost(dropped, d.raw.Nack(false, false))
	}
	failpoint.Hit("rabbit/requeue")
	err := d.raw.Nack(false, true)
	failpoint.Hit("rabbit/requeued")
	return outcomeUnlessLost(requeued, err)
}

// outcomeUnlessLost returns the given outcome if err is nil. If err is not nil, the ack
// or nack was not sent, and the channel will be closed soon. The outcome is then the
// constant lost.
func outcomeUnlessLost(outcome int, err error) int {
	if err != nil {
		return lost
	}
	return outcome
}
