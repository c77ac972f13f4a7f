package rabbit

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

var errCloseTimeout = errors.New("rabbit: CloseTimeout is over")

// end waits for the messages in flight, and returns the other messages to the queue. If
// a stuck queue delays the requests of end, these requests continue in the background
// until the broker replies or the connection is closed. If the subscription has no
// channel, ch is nil.
func (sub *subscription) end(ch *consumeChannel) {
	defer sub.cancel()
	sub.discardOpening()
	began, patience := time.Now(), sub.s.cfg.DialTimeout
	if !sub.drain(ch) {
		patience -= time.Since(began)
	}
	if ch != nil {
		sub.retired[ch] = true
	}
	sub.countGivenBack()

	close(sub.stopped)
	for ch := range sub.retired {
		ch.lose(errCloseTimeout) // end the contexts of messages before the broker can deliver the messages to another consumer
		sub.running.Go(ch.close)
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-sub.ended():
	case <-limit.C:
		sub.s.cfg.Logger.Error("Unacked messages return to the queue when RabbitMQ replies", errNoReply, sub.fields())
	}
	close(sub.out)
	sub.s.cfg.Logger.Info("RabbitMQ consumer stopped", sub.fields())
}

// drain settles deliveries until no message is in flight, or CloseTimeout is over. It
// returns the buffered messages to the queue only after the broker has stopped
// delivering, because the broker would otherwise deliver these messages to this
// consumer again. It waits up to DialTimeout for the broker, and reports whether the
// broker has stopped delivering.
func (sub *subscription) drain(ch *consumeChannel) (stopped bool) {
	slow, deadline := time.NewTimer(sub.s.cfg.DialTimeout), time.NewTimer(sub.s.cfg.CloseTimeout)
	defer slow.Stop()
	defer deadline.Stop()

	if ch == nil {
		ch = &consumeChannel{}
	} else {
		sub.running.Go(ch.stop)
	}
	deliveries := ch.deliveries
	for awaited := deliveries != nil; awaited || sub.inFlight > 0; {
		select {
		case raw, ok := <-deliveries:
			if !ok {
				deliveries, awaited = nil, false
				ch.giveBackBuffered()
				continue
			}
			ch.buffered = append(ch.buffered, &delivery{channel: ch, raw: raw, cancel: func() {}})
		case d := <-sub.handled:
			sub.settle(d)
		case <-slow.C:
			awaited = false
		case <-deadline.C:
			return deliveries == nil
		}
	}
	return deliveries == nil
}

// ended returns a channel that is closed when all goroutines of the subscription have
// ended. Subscriber.Close closes the connection, and then also waits for these
// goroutines.
func (sub *subscription) ended() <-chan struct{} {
	ended := make(chan struct{})
	sub.s.background.Go(func() {
		sub.running.Wait()
		close(ended)
	})
	return ended
}

// countGivenBack counts and logs the messages that are still in flight.
func (sub *subscription) countGivenBack() {
	if sub.inFlight == 0 {
		return
	}
	sub.s.inFlight.Add(-int64(sub.inFlight))
	sub.s.instruments.settled.Add(int64(sub.inFlight), lost)
	if sub.s.closing.Err() != nil {
		sub.s.givenBack.Add(int64(sub.inFlight))
	}
	sub.s.cfg.Logger.Error("Messages in flight given back", errCloseTimeout,
		sub.fields().Add(watermill.LogFields{"messages": sub.inFlight}))
}
