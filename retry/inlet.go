package retry

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
)

// inlet is the subscription to the transport. During a pause it is closed, so that messages stay in
// the broker: if they were only left unacked, the broker would end the subscription after its
// consumer timeout. Only the goroutine of forward uses it.
type inlet struct {
	*fetcher

	sub message.Subscriber
	ctx context.Context

	messages <-chan *message.Message // nil while the subscription is closed
	cancel   context.CancelFunc      // ends the subscription
	ended    bool                    // the transport has ended the subscription, or the consumer shuts down
	kept     *message.Message        // received, but not passed to a handler before the pause
	handed   answers
}

// subscribe subscribes to the transport, until in.ctx ends or a pause begins. Close does not cancel
// its context, because the transport must still finish its messages.
func (in *inlet) subscribe() error {
	ctx, cancel := context.WithCancel(parkedrows.WithSubscription(in.ctx, in.subscription()))
	messages, err := in.sub.Subscribe(ctx, in.topic)
	if err != nil {
		cancel()
		return err
	}
	in.messages, in.cancel = messages, cancel
	if !in.subscribed {
		in.subscribed = true
		close(in.begun)
	}
	return nil
}

func (in *inlet) end() {
	in.messages, in.ended = nil, true
	in.cancel()
}

func (in *inlet) handOut(msg *message.Message, out chan<- *message.Message) {
	begins := in.limiter.forMessage(msg, parkedrows.FromTransport)
	defer begins.end()
	for probe := false; ; {
		intake, changed := in.pauses.Intake(parkedrows.FromTransport)
		if intake.Starts() && !begins.await(changed, in.closing) {
			select {
			case <-in.closing:
				msg.Nack()
				return
			default:
				continue
			}
		}
		if ok := intake == parkedrows.IntakeOpen || probe; !ok {
			if probe, ok = in.breaker.start(msg, parkedrows.FromTransport); !ok {
				in.kept = msg
				return
			}
		}
		select {
		case out <- msg:
			in.handed.add(msg)
			return
		case <-changed:
		case <-in.closeTimeout:
			in.unanswered.Add(1)
			msg.Nack()
			return
		}
	}
}

// handOutKept passes on the message that a short pause has kept back.
func (in *inlet) handOutKept(out chan<- *message.Message) {
	msg := in.kept
	in.kept = nil
	in.handOut(msg, out)
}

// pause waits for the acks of the messages that handlers have received, closes the subscription,
// and subscribes again after the pause. It also returns when the consumer shuts down.
func (in *inlet) pause() {
	fields := watermill.LogFields{"consumer": in.consumer, "topic": in.topic}
	in.config.Logger.Info("Consumer is paused", fields)
	if in.messages != nil {
		for waiting := true; waiting; {
			intake, changed := in.pauses.Intake(parkedrows.FromTransport)
			if intake.Starts() {
				return
			}
			select {
			case <-in.closing:
				in.returnAll()
				return
			default:
			}
			waiting = !in.handed.wait(in.closing, changed)
		}
		failpoint.Hit("retry/pause")
		in.cancel()
		slow := time.AfterFunc(slowDrain, func() {
			in.config.Logger.Error("Transport does not end the subscription of a paused consumer", errNotEnded, fields)
		})
		in.drain()
		slow.Stop()
		failpoint.Hit("retry/paused")
	}
	failing := false
	for again := time.Duration(0); ; {
		intake, changed := in.pauses.Intake(parkedrows.FromTransport)
		var tryAgain <-chan time.Time
		if intake.Starts() {
			tryAgain = time.After(again)
		}
		select {
		case <-in.closing:
			in.ended = true
			return
		case <-changed:
			continue
		case <-tryAgain:
		}
		err := in.subscribe()
		if err == nil {
			select {
			case <-in.closing: // Close may have closed the transport before it was subscribed
				in.cancel()
				in.returnAll()
				return
			default:
			}
			in.config.Logger.Info("Consumer is resumed", fields)
			in.wakeUp()
			return
		}
		if !failing {
			failing = true
			in.config.Logger.Error("Paused consumer cannot subscribe again, retrying", err, fields)
		}
		again = min(2*again+50*time.Millisecond, 5*time.Second)
	}
}

func (in *inlet) returnAll() {
	in.drain()
	in.end()
}

const (
	slowDrain = 10 * time.Second

	// manyReturned is the number of returned messages after which drain returns one per second: the
	// transport delivers them again, although its context has ended.
	manyReturned = 1000
)

func (in *inlet) drain() {
	if in.kept != nil {
		in.kept.Nack()
		in.kept = nil
	}
	returned := 0
	for msg := range in.messages {
		msg.Nack()
		if returned++; returned > manyReturned {
			select {
			case <-time.After(time.Second):
			case <-in.closing:
			}
		}
	}
	in.messages = nil
}

// answer keeps the channels of a message, and not its payload, which may be large.
type answer struct{ acked, nacked <-chan struct{} }

func (a answer) given() bool {
	select {
	case <-a.acked:
	case <-a.nacked:
	default:
		return false
	}
	return true
}

type answers struct {
	open  []answer // some of them may have been given since
	prune int      // length of open at which the given answers are removed
}

func (a *answers) add(msg *message.Message) {
	if len(a.open) >= a.prune {
		a.removeGiven()
		a.prune = max(16, 2*len(a.open))
	}
	a.open = append(a.open, answer{msg.Acked(), msg.Nacked()})
}

func (a *answers) removeGiven() {
	left := a.open[:0]
	for _, answer := range a.open {
		if !answer.given() {
			left = append(left, answer)
		}
	}
	a.open = left
}

// wait returns false if one of the channels is closed before each message has an ack or a nack.
func (a *answers) wait(closing, changed <-chan struct{}) bool {
	for _, answer := range a.open {
		select {
		case <-answer.acked:
		case <-answer.nacked:
		case <-closing:
			return false
		case <-changed:
			return false
		}
	}
	a.open = nil
	return true
}
