package rabbit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
)

var (
	errCancelled = errors.New("the broker has cancelled the consumer: its queue was deleted or has moved")
	errSlow      = errors.New("the broker has not answered yet: the queue may be stuck")
)

// intake is a channel with one consumer. Deliveries are acked on the intake that
// they came from: on any other the broker would not know them, and close it.
type intake struct {
	sub        *subscription
	link       *link
	channel    *amqp.Channel
	tag        string
	deliveries <-chan amqp.Delivery
	cancelled  chan string
	asking     sync.Mutex // the channel has one request at a time

	ctx  context.Context // ends when nothing can be acked any more
	lose context.CancelCauseFunc

	open       []uint64    // delivery tags that were not answered, ascending
	waiting    []*delivery // of these: decoded, and not yet handed out
	unanswered int         // of these: handed out
	lostBy     int         // why it gives no more, as a series; set by over
}

// opening is an intake in the making.
type opening struct {
	*intake

	done chan struct{}
	err  error // set when done is closed
}

// open opens a channel on the connection, and begins to consume. What takes too
// long goes on, and is waited for by the next call, or left to abandon.
func (sub *subscription) open(l *link) (*intake, error) {
	if sub.opening == nil {
		sub.opening = sub.newOpening(l)
	}
	limit := time.NewTimer(l.timeout)
	defer limit.Stop()
	select {
	case <-sub.opening.done:
	case <-limit.C:
		return nil, errSlow
	case <-sub.ctx.Done():
		return nil, sub.ctx.Err()
	}
	in, err := sub.opening.intake, sub.opening.err
	sub.opening = nil
	if err != nil {
		in.lose(err)
		sub.running.Go(in.close)
		return nil, err
	}
	return in, nil
}

func (sub *subscription) newOpening(l *link) *opening {
	in := &intake{sub: sub, link: l, tag: sub.s.config.Consume.Consumer}
	if in.tag == "" {
		in.tag = "once-" + uuid.NewString()
	}
	in.ctx, in.lose = context.WithCancelCause(sub.values)
	o := &opening{intake: in, done: make(chan struct{})}
	sub.running.Go(func() {
		defer close(o.done)
		o.err = l.patiently(in.begin)
	})
	return o
}

// abandon closes the intake in the making, if there is one, as soon as it is there.
func (sub *subscription) abandon() {
	if o := sub.opening; o != nil {
		sub.running.Go(func() {
			<-o.done
			o.lose(errCloseTimeout)
			o.close()
		})
	}
}

// begin may leave a channel behind that is to be closed.
func (in *intake) begin() error {
	channel, err := in.link.conn.Channel()
	if err != nil {
		return err
	}
	in.channel = channel
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	in.sub.running.Go(func() {
		reason, ok := <-closed
		in.lose(in.link.reason(reason, ok))
	})
	in.cancelled = channel.NotifyCancel(make(chan string, 1))

	if err := in.sub.declare(in.link, channel); err != nil {
		return err
	}
	consume := in.sub.s.config.Consume
	if err := channel.Qos(in.sub.s.cfg.prefetch(consume.Qos.PrefetchCount), 0, false); err != nil {
		return err
	}
	if err := in.sub.over(); err != nil {
		return err // what came now would come again, as a delivery more
	}
	in.deliveries, err = channel.Consume(
		in.sub.queue, in.tag, false, consume.Exclusive, consume.NoLocal, consume.NoWait, consume.Arguments)
	return err
}

// over says why there are no more deliveries. amqp091 tells of a cancel before
// it ends the deliveries, and of nothing else on that channel but its end.
func (in *intake) over() error {
	select {
	case _, ok := <-in.cancelled:
		if ok {
			in.lostBy = lostConsumer
			return errCancelled
		}
	default:
	}
	<-in.ctx.Done()
	in.lostBy = lostChannel
	if in.link.conn.IsClosed() {
		in.lostBy = lostConnection
	}
	return context.Cause(in.ctx)
}

// giveBack returns what no handler has to the queue.
func (in *intake) giveBack() {
	for _, d := range in.waiting {
		if in.ctx.Err() == nil {
			failpoint.Hit("rabbit/give-back")
			_ = d.raw.Nack(false, true)
		}
		d.cancel()
	}
	in.waiting = nil
}

// stop has the broker send no more. The deliveries end when it has said so.
func (in *intake) stop() {
	in.ask(func() error { return in.channel.Cancel(in.tag, false) })
}

// close closes the channel, by which the broker gets back what was not
// answered.
func (in *intake) close() {
	if in.channel != nil {
		in.ask(in.channel.Close)
	}
}

// ask makes a request. Should it fail, the channel is closed.
func (in *intake) ask(request func() error) {
	in.asking.Lock()
	defer in.asking.Unlock()
	_ = in.link.patiently(request)
}
