package rabbit

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

var errCloseTimeout = errors.New("rabbit: CloseTimeout is over")

// end waits for what is in flight, and gives back the rest. What a stuck queue
// does not answer is left behind, until it does or the connection is closed. in
// is nil while there is no channel.
func (sub *subscription) end(in *intake) {
	defer sub.cancel()
	sub.abandon()
	began, patience := time.Now(), sub.s.cfg.DialTimeout
	if !sub.drain(in) {
		patience -= time.Since(began)
	}
	if in != nil {
		sub.retired[in] = true
	}
	sub.giveBack()

	close(sub.gone)
	for in := range sub.retired {
		in.lose(errCloseTimeout) // before anybody else gets the messages
		sub.running.Go(in.close)
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-sub.ended():
	case <-limit.C:
		sub.s.cfg.Logger.Error("What was not acked goes back when RabbitMQ answers", errSlow, sub.fields())
	}
	close(sub.out)
	sub.s.cfg.Logger.Info("Stopped consuming from RabbitMQ", sub.fields())
}

// drain takes answers until nothing is in flight or CloseTimeout is over. What no
// handler has goes back when the broker sends no more, or it would come again. It
// reports false if the broker has not said so, for which it has DialTimeout.
func (sub *subscription) drain(in *intake) (stopped bool) {
	slow, deadline := time.NewTimer(sub.s.cfg.DialTimeout), time.NewTimer(sub.s.cfg.CloseTimeout)
	defer slow.Stop()
	defer deadline.Stop()

	if in == nil {
		in = &intake{}
	} else {
		sub.running.Go(in.stop)
	}
	deliveries := in.deliveries
	for awaited := deliveries != nil; awaited || sub.held > 0; {
		select {
		case raw, ok := <-deliveries:
			if !ok {
				deliveries, awaited = nil, false
				in.giveBack()
				continue
			}
			in.waiting = append(in.waiting, &delivery{in: in, raw: raw, cancel: func() {}})
		case d := <-sub.answers:
			sub.settle(d)
		case <-slow.C:
			awaited = false
		case <-deadline.C:
			return deliveries == nil
		}
	}
	return deliveries == nil
}

// ended returns what is closed when nothing of the subscription is left. Close of
// the Subscriber waits for that after the connection is closed.
func (sub *subscription) ended() <-chan struct{} {
	ended := make(chan struct{})
	sub.s.left.Go(func() {
		sub.running.Wait()
		close(ended)
	})
	return ended
}

// giveBack counts what is left in flight.
func (sub *subscription) giveBack() {
	if sub.held == 0 {
		return
	}
	sub.s.inFlight.Add(-int64(sub.held))
	sub.s.instruments.settled.Add(int64(sub.held), lost)
	if sub.s.closing.Err() != nil {
		sub.s.givenBack.Add(int64(sub.held))
	}
	sub.s.cfg.Logger.Error("Messages in flight are given back", errCloseTimeout,
		sub.fields().Add(watermill.LogFields{"messages": sub.held}))
}
