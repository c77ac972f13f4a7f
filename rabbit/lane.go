package rabbit

import (
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The longest number that a lane gives a publish, in base 36.
const maxTokenSize = 13

// lane is a channel in confirm mode, and what is outstanding on it. A lane that
// is not its Publisher's current one takes no new messages, and goes when
// nothing is outstanding on it any more.
type lane struct {
	session *session
	channel *amqp.Channel

	// As long as the window, so that amqp091's reader never waits for us.
	returns chan amqp.Return

	// amqp091 puts the reason in here before it marks what is outstanding as
	// not acked.
	closed chan *amqp.Error

	// Guarded by Publisher.mu.
	number   uint64    // of the last publish
	incoming []*flight // sent, and not yet seen by the settler

	// The settler's own.
	pending  []*flight              // in order, so the next one overdue is first
	searched time.Time              // when all of them were last looked at
	returned map[uint64]amqp.Return // by number; bodies are dropped
	lost     []*flight              // not acked, on a channel that is closed
	reason   *amqp.Error            // why it is closed, if the broker did it
}

// openLane opens a channel for publishing.
func (s *session) openLane() (*lane, error) {
	l := &lane{session: s, returned: make(map[uint64]amqp.Return)}
	err := s.request(func() (err error) {
		if l.channel, err = s.conn.Channel(); err != nil {
			return err
		}
		return l.channel.Confirm(false)
	})
	if err != nil {
		return nil, err
	}
	l.returns = l.channel.NotifyReturn(make(chan amqp.Return, s.p.cfg.Window))
	l.closed = l.channel.NotifyClose(make(chan *amqp.Error, 1))
	return l, nil
}

// publish hands the message to the connection's write buffer. It reports false
// if it could not; then the message was not sent whole, and so not at all, and
// the lane is of no more use. Publisher.mu is held: neither the socket nor
// amqp091's reader ever waits with a lock that is needed here.
func (l *lane) publish(f *flight, publishing *amqp.Publishing) bool {
	l.number++
	publishing.Headers[PublishHeader] = strconv.FormatUint(l.number, 36)
	confirm, err := l.channel.PublishWithDeferredConfirm(f.exchange, f.key, true, false, *publishing)
	if err != nil {
		if !l.channel.IsClosed() {
			l.session.sock.abort(err)
		}
		return false
	}
	f.number, f.confirm, f.sent = l.number, confirm, time.Now()
	l.incoming = append(l.incoming, f)
	return true
}

// takeIncoming moves what was sent to what is pending. Publisher.mu is held.
func (l *lane) takeIncoming() {
	if len(l.incoming) == 0 {
		return
	}
	deadline := time.Now().Add(l.session.p.cfg.ConfirmTimeout)
	for _, f := range l.incoming {
		f.deadline = deadline
	}
	l.pending = append(l.pending, l.incoming...)
	clear(l.incoming)
	l.incoming = l.incoming[:0]
}

// takeMarked moves what amqp091 has marked as acked or not from pending to the
// end of done. Confirms mostly come in order, so it looks no further than that,
// unless none did or it has not for some time.
func (l *lane) takeMarked(done []*flight, now time.Time) []*flight {
	front := 0
	for front < len(l.pending) && l.pending[front].isMarked() {
		front++
	}
	done = append(done, l.pending[:front]...)
	l.pending = slices.Delete(l.pending, 0, front)
	if front > 0 && now.Sub(l.searched) < shortTick {
		return done
	}
	l.searched = now
	l.pending = slices.DeleteFunc(l.pending, func(f *flight) bool {
		if !f.isMarked() {
			return false
		}
		done = append(done, f)
		return true
	})
	return done
}

// drainReturns takes over what the broker has returned up to now.
func (l *lane) drainReturns() {
	for {
		select {
		case r, ok := <-l.returns:
			if !ok {
				l.returns = nil // a nil channel is never ready
				return
			}
			number, err := strconv.ParseUint(headerText(r.Headers[PublishHeader]), 36, 64)
			if err == nil {
				l.returned[number] = amqp.Return{ReplyCode: r.ReplyCode, ReplyText: r.ReplyText}
			}
		default:
			return
		}
	}
}

// isSettled reports whether nobody waits for anything on the lane any more.
// What is overdue comes first, so the last one tells.
func (l *lane) isSettled() bool {
	return len(l.lost) == 0 && (len(l.pending) == 0 || l.pending[len(l.pending)-1].overdue)
}

// oldest is the flight that waits longest, or nil.
func (l *lane) oldest() *flight {
	for _, f := range l.pending {
		if !f.overdue {
			return f
		}
	}
	return nil
}
