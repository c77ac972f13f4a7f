package rabbit

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/amqpwire"
)

// confirming returns a confirm loop without a broker, and the current channel of the
// loop. The channel contains messages of 100 bytes that were just sent.
func confirming(messages int) (*confirmLoop, *confirmChannel) {
	p := &Publisher{
		cfg:    PublisherConfig{Logger: watermill.NopLogger{}, ConfirmTimeout: time.Minute},
		reopen: make(chan struct{}, 1), wake: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	p.instruments = newInstruments(p)
	s := &session{p: p, declared: map[string]struct{}{"e": {}}}
	ch := &confirmChannel{session: s, returned: make(map[uint64]amqpwire.Response)}
	for range messages {
		ch.number++
		ch.sent = append(ch.sent, &publication{number: ch.number, id: "m", size: 100, done: func(error) {}})
		p.count, p.bytes = p.count+1, p.bytes+100
	}
	p.session, p.channel, p.channels = s, ch, []*confirmChannel{ch}
	return &confirmLoop{p: p, channels: p.channels, current: ch, streaks: make(map[destination]*nackStreak)}, ch
}

// A message leaves the window when it has an outcome. A second response to the message
// does not make room again.
func TestOutcomeMakesRoomInTheWindow(t *testing.T) {
	t.Parallel()
	l, ch := confirming(3)
	ch.takeSent()
	p := l.p
	change := p.changed
	p.waiting = true
	l.releaseWindow()
	select {
	case <-change:
		t.Fatal("waiting publishes are woken without an outcome")
	default:
	}
	ch.responses = []amqpwire.Response{{Number: 2}, {Number: 2}, {Number: 77}}
	l.processResponses(ch)
	ch.pending[0].overdue = true
	l.record(ch.pending[0], nil) // the outcome of this message was reported before
	l.releaseWindow()
	l.releaseWindow()
	if p.count != 2 || p.bytes != 200 || l.slots != 0 || l.bytes != 0 || len(l.outcomes) != 1 {
		t.Errorf("%d messages of %d bytes in the window, %d outcomes, want 2 of 200 and one", p.count, p.bytes, len(l.outcomes))
	}
	select {
	case <-change:
	default:
		t.Error("waiting publishes are not woken")
	}
	l.report()
	if len(l.outcomes) != 0 || l.outcomes[:1][0].pub != nil {
		t.Error("reported outcomes are kept")
	}
}

// An ack with the multiple flag is for all messages up to its number. If a message was
// returned, its ack does not confirm it.
func TestResponsesDecideOutcomes(t *testing.T) {
	t.Parallel()
	l, ch := confirming(6)
	ch.takeSent()
	if len(ch.sent) != 0 || ch.sent[:1][0] != nil || len(ch.pending) != 6 {
		t.Fatal("messages that were sent are not taken over")
	}
	ch.responses = []amqpwire.Response{
		{Number: 2, Kind: amqpwire.Return, Code: 312, Text: "NO_ROUTE amqp://u:secret@h"},
		{Number: 5, Kind: amqpwire.Nack},
		{Number: 3, Multiple: true},
		{Number: 6, Kind: amqpwire.Nack, Multiple: true},
	}
	l.processResponses(ch)
	got := map[uint64]error{}
	for _, o := range l.outcomes {
		got[o.pub.number] = o.err
	}
	for number, want := range map[uint64]error{1: nil, 2: ErrReturned, 3: nil, 4: ErrNacked, 5: ErrNacked, 6: ErrNacked} {
		if err, ok := got[number]; !ok || !errors.Is(err, want) {
			t.Errorf("message %d: got %v, want %v", number, err, want)
		}
	}
	if e, _ := errors.AsType[*PublishError](got[2]); e.Code != 312 || e.Reason != "NO_ROUTE amqp://***@h" {
		t.Errorf("the return has code %d and reason %q", e.Code, e.Reason)
	}
	if len(l.outcomes) != 6 || len(ch.returned) != 0 || len(ch.pending) != 0 || ch.settled != 0 || l.confirms != 2 {
		t.Errorf("%d outcomes, %d confirms, left are %v and %v", len(l.outcomes), l.confirms, ch.returned, ch.pending)
	}
}

// After a change of the channel, messages on the former channel may still be unconfirmed.
// They are overdue before the messages of the current channel.
func TestEarliestDeadlineMayBeOnAFormerChannel(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := func(d time.Duration) []*publication { return []*publication{{deadline: now.Add(d)}} }
	former, current := &confirmChannel{pending: at(time.Second)}, &confirmChannel{pending: at(time.Minute)}
	for _, channels := range [][]*confirmChannel{{former, current}, {current, former}} {
		l := &confirmLoop{channels: channels, current: current}
		if l.oldest() != former.pending[0] {
			t.Errorf("with the former channel at %d, the loop waits for the current channel", slices.Index(channels, former))
		}
	}
}

// If a message is overdue, its outcome is unknown, and new messages are sent over another
// channel. A confirm that arrives later changes nothing.
func TestOverdueMessageChangesTheChannelOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ch := confirming(2)
		began := time.Now()
		ch.takeSent()
		ch.pending[1].deadline = began.Add(2 * time.Minute)
		l.expire(ch, began.Add(time.Minute-1))
		if len(l.outcomes) != 0 || l.current != ch || l.oldest() != ch.pending[0] {
			t.Fatal("it is overdue too early")
		}
		for range 2 {
			l.expire(ch, began.Add(time.Minute))
		}
		if len(l.outcomes) != 1 || l.current != nil || l.p.channel != nil || len(l.p.reopen) != 1 || l.oldest() != ch.pending[1] {
			t.Fatalf("%d outcomes, the current channel is %p", len(l.outcomes), l.current)
		}
		if err := l.outcomes[0].err; !errors.Is(err, ErrUnknown) || !strings.HasSuffix(err.Error(), ": no confirm within 1m0s") {
			t.Errorf("got %v", err)
		}
		other := &confirmChannel{}
		l.current = other
		l.expire(ch, began.Add(2*time.Minute))
		if len(l.outcomes) != 2 || l.current != other || l.oldest() != nil {
			t.Errorf("%d outcomes; the channel was changed: %t", len(l.outcomes), l.current != other)
		}
		ch.responses = []amqpwire.Response{{Number: 2, Multiple: true}}
		l.processResponses(ch)
		if len(l.outcomes) != 2 || len(ch.pending) != 0 {
			t.Errorf("%d outcomes after late confirms, %d are pending", len(l.outcomes), len(ch.pending))
		}
	})
}

// The loop waits until the next deadline, or until it is woken.
func TestConfirmLoopWaitsForTheNextDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ch := confirming(1)
		l.timer = time.NewTimer(time.Hour)
		if l.becomeIdle() || l.p.idle {
			t.Fatal("it is idle although a message was sent")
		}
		ch.takeSent()
		began := time.Now()
		l.wait()
		if got := time.Since(began); got != time.Minute {
			t.Fatalf("it waits for %v, want a minute", got)
		}
		notify(l.p.wake)
		notify(l.p.wake) // a second signal does not block
		began = time.Now()
		ch.pending[0].deadline = began.Add(time.Hour)
		if l.wait(); time.Since(began) != 0 {
			t.Fatal("it is not woken")
		}
		ch.pending[0].overdue = true
		time.AfterFunc(time.Second, func() {
			l.p.mu.Lock()
			defer l.p.mu.Unlock()
			if !l.p.idle {
				t.Error("it is not idle")
			}
			l.p.wakeConfirmLoop()
		})
		if l.wait(); time.Since(began) != time.Second || l.p.idle {
			t.Fatalf("an idle loop is woken after %v", time.Since(began))
		}
		l.p.stopping = true
		if l.wait(); time.Since(began) != time.Second {
			t.Fatal("it waits although the Publisher stops")
		}
	})
}

// The loop ends when the Publisher is stopping and every outcome was reported.
func TestConfirmLoopEndsWithTheLastOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(p *Publisher)
		ends   bool
	}{
		"stopping":             {func(p *Publisher) { p.stopping = true }, true},
		"running":              {func(*Publisher) {}, false},
		"a channel is open":    {func(p *Publisher) { p.stopping, p.channels = true, []*confirmChannel{p.channel} }, false},
		"a message has failed": {func(p *Publisher) { p.stopping, p.failed = true, []outcome{{}} }, false},
	} {
		l, ch := confirming(0)
		ch.wire = new(amqpwire.Channel)
		l.p.channels = nil
		c.change(l.p)
		if got := !l.collect(); got != c.ends || l.p.stopped != c.ends {
			t.Errorf("%s: the loop ends: %t, want %t", name, got, c.ends)
		}
		if len(l.p.failed) != 0 || len(l.channels) != len(l.p.channels) || l.current != l.p.channel {
			t.Errorf("%s: %d failed messages are left, %d channels", name, len(l.p.failed), len(l.channels))
		}
	}
}

// The error of a message contains the broker's reason, but no credentials.
func TestErrorOfAPublicationSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	pub := &publication{id: "m", topic: "t", exchange: "e", key: "k"}
	const begin = `: message "m", topic "t", exchange "e", routing key "k"`
	cause := errors.New("cause")
	for name, c := range map[string]struct {
		err  *PublishError
		want string
		is   []error
	}{
		"returned": {
			pub.error(ErrReturned, 312, "NO_ROUTE", nil),
			"rabbit: returned as unroutable" + begin + ": 312: NO_ROUTE; no queue receives the message: " +
				"declare a queue, and bind it to the exchange with this routing key",
			[]error{ErrReturned},
		},
		"nacked": {
			pub.error(ErrNacked, 0, "", nil),
			"rabbit: nacked by the broker" + begin + "; a queue of this exchange is full, or has lost its majority: see rabbitmqctl list_queues",
			[]error{ErrNacked},
		},
		"nothing": {pub.error(ErrUnavailable, 0, "", nil), "rabbit: unavailable" + begin, []error{ErrUnavailable}},
		"all":     {pub.error(ErrUnknown, 1, "why", cause), "rabbit: outcome unknown" + begin + ": 1: why", []error{ErrUnknown, cause}},
		"connection lost": {
			pub.channelClosed(ErrUnknown, &amqp.Error{Code: 501, Reason: "at amqp://u:p@h"}),
			"rabbit: outcome unknown" + begin + ": connection lost: at amqp://***@h",
			[]error{ErrUnknown},
		},
		"closed by the broker": {
			pub.channelClosed(ErrRefused, &amqp.Error{Code: 404, Reason: "at amqp://u:p@h", Server: true}),
			"rabbit: refused" + begin + ": 404: at amqp://***@h; declare the exchange",
			[]error{ErrRefused},
		},
		"without a right": {
			pub.channelClosed(ErrRefused, &amqp.Error{Code: 403, Reason: "no write access", Server: true}),
			"rabbit: refused" + begin + ": 403: no write access; grant the user the missing right with rabbitmqctl set_permissions",
			[]error{ErrRefused},
		},
		"too large": {
			pub.notEncoded(amqpwire.TooLarge("headers", 3, 2)), "rabbit: too large" + begin + ": headers of 3 bytes; the limit is 2",
			[]error{ErrTooLarge},
		},
		"invalid": {pub.notEncoded(&amqpwire.EncodeError{}), "rabbit: invalid" + begin, []error{ErrInvalid}},
		"refused by the broker": {
			pub.notDeclared(&amqp.Error{Code: 406, Reason: "inequivalent"}),
			"rabbit: refused" + begin + ": 406: declare exchange: inequivalent; " +
				"use the settings that the exchange has in the broker, or delete it there",
			[]error{ErrRefused},
		},
		"refused by the builder": {
			pub.notDeclared(cause), "rabbit: refused" + begin + ": declare exchange: cause", []error{ErrRefused, cause},
		},
	} {
		if c.err.Error() != c.want {
			t.Errorf("%s: got  %s\nwant %s", name, c.err, c.want)
		}
		for _, err := range c.is {
			if !errors.Is(c.err, err) {
				t.Errorf("%s: it is not %v", name, err)
			}
		}
		if got := len(c.err.Unwrap()); got != len(c.is) && c.err.Code == 0 {
			t.Errorf("%s: it unwraps to %d errors, want %d", name, got, len(c.is))
		}
	}
}

// A closed channel is no longer used. The Publisher declares exchanges again, and all
// messages of the channel have an outcome.
func TestClosedChannelIsDetached(t *testing.T) {
	t.Parallel()
	l, ch := confirming(3)
	ours, _ := net.Pipe()
	wire := amqpwire.NewConn(ours, amqpwire.Config{WriteTimeout: time.Minute})
	ch.session.connection = &connection{wire: wire}
	ch.takeSent()
	ch.settle(ch.pending[1])
	ch.closed = &amqp.Error{Code: 404, Server: true, Recover: true}
	l.detach(ch)
	l.attributeClose(ch)
	if l.current != nil || l.p.channel != nil || len(ch.session.declared) != 0 || len(ch.pending) != 0 || ch.settled != 0 {
		t.Errorf("the channel is still used: %+v", ch)
	}
	if len(l.outcomes) != 2 || !errors.Is(l.outcomes[0].err, ErrUnknown) || !errors.Is(l.outcomes[1].err, ErrUnknown) {
		t.Errorf("got %v, want two unknown outcomes", l.outcomes)
	}
	ch.sent = make([]*publication, 1)
	l.remove(ch)
	if len(l.p.channels) != 1 {
		t.Error("a channel with a message was removed")
	}
	wire.Abort(net.ErrClosed)
	<-wire.Done()
}
