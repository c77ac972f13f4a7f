package rabbit

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

var errCloseTimeout = errors.New("rabbit: CloseTimeout is over")

// end waits for what is in flight, gives back the rest, and leaves nothing
// behind. in is nil while there is no channel.
func (sub *subscription) end(in *intake) {
	defer sub.cancel()
	if sub.opening != nil {
		sub.running.Go(sub.opening.abandon)
	}
	sub.drain(in)
	if in != nil {
		sub.retired[in] = true
	}
	sub.giveBack()

	close(sub.gone)
	for in := range sub.retired {
		in.lose(errCloseTimeout) // before anybody else gets the messages
		sub.running.Go(in.close)
	}
	sub.running.Wait()
	close(sub.out)
	sub.s.cfg.Logger.Info("Stopped consuming from RabbitMQ", sub.fields())
}

// drain takes answers until nothing is in flight or CloseTimeout is over. What no
// handler has goes back when the broker sends no more, or it would come again.
func (sub *subscription) drain(in *intake) {
	timeout := sub.s.cfg.CloseTimeout
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()

	stopped := make(chan struct{})
	if in == nil {
		close(stopped)
		in = &intake{}
	} else {
		go func() {
			defer close(stopped)
			in.stop(min(timeout, sub.s.cfg.DialTimeout))
		}()
	}
	defer func() { <-stopped }() // the channel has one request at a time

	deliveries := in.deliveries
	for sub.held > 0 || deliveries != nil {
		select {
		case raw, ok := <-deliveries:
			if !ok {
				deliveries = nil
				in.giveBack()
				continue
			}
			in.waiting = append(in.waiting, &delivery{in: in, raw: raw, cancel: func() {}})
		case d := <-sub.answers:
			sub.settle(d)
		case <-deadline.C:
			return
		}
	}
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
