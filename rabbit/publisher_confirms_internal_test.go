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
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

// confirming returns a confirm loop without a broker, and the current channel of the
// loop. The channel contains messages of 100 bytes that were just sent.
func confirming(messages int) (*confirmLoop, *confirmChannel) {
	p := &Publisher{
		cfg:    PublisherConfig{Logger: watermill.NopLogger{}, ConfirmTimeout: time.Minute},
		reopen: make(chan struct{}, 1), wake: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	p.instruments = newInstruments(p)
	s := &session{connection: new(connection), p: p, declared: map[string]struct{}{"e": {}}}
	ch := &confirmChannel{session: s, returned: make(map[uint64]amqpwire.Response)}
	for range messages {
		ch.number++
		ch.sent = append(ch.sent, &publication{number: ch.number, id: "m", size: 100, done: func(error) {}})
		p.count, p.bytes = p.count+1, p.bytes+100
	}
	p.session, p.current, p.channels = s, []*confirmChannel{ch}, []*confirmChannel{ch}
	return &confirmLoop{p: p, channels: p.channels, current: slices.Clone(p.current), streaks: make(map[destination]*nackStreak)}, ch
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
		l := &confirmLoop{channels: channels, current: []*confirmChannel{current}}
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
		if len(l.outcomes) != 0 || !slices.Contains(l.current, ch) || l.oldest() != ch.pending[0] {
			t.Fatal("it is overdue too early")
		}
		for range 2 {
			l.expire(ch, began.Add(time.Minute))
		}
		if len(l.outcomes) != 1 || len(l.current) != 0 || len(l.p.current) != 0 || len(l.p.reopen) != 1 || l.oldest() != ch.pending[1] {
			t.Fatalf("%d outcomes, the current channels are %v", len(l.outcomes), l.current)
		}
		if err := l.outcomes[0].err; !errors.Is(err, ErrUnknown) || !strings.HasSuffix(err.Error(), ": no confirm within 1m0s") {
			t.Errorf("got %v", err)
		}
		other := &confirmChannel{}
		l.current = []*confirmChannel{other}
		l.expire(ch, began.Add(2*time.Minute))
		if len(l.outcomes) != 2 || len(l.current) != 1 || l.oldest() != nil {
			t.Errorf("%d outcomes; current channels: %v", len(l.outcomes), l.current)
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
		"a channel is open":    {func(p *Publisher) { p.stopping, p.channels = true, slices.Clone(p.current) }, false},
		"a message has failed": {func(p *Publisher) { p.stopping, p.failed = true, []outcome{{}} }, false},
	} {
		l, ch := confirming(0)
		ch.wire = new(amqpwire.Channel)
		l.p.channels = nil
		c.change(l.p)
		if got := !l.collect(); got != c.ends || l.p.stopped != c.ends {
			t.Errorf("%s: the loop ends: %t, want %t", name, got, c.ends)
		}
		if len(l.p.failed) != 0 || len(l.channels) != len(l.p.channels) || !slices.Equal(l.current, l.p.current) {
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
			pub.channelClosed(ErrUnknown, &amqp091.Error{Code: 501, Reason: "at amqp://u:p@h"}),
			"rabbit: outcome unknown" + begin + ": connection lost: at amqp://***@h",
			[]error{ErrUnknown},
		},
		"closed by the broker": {
			pub.channelClosed(ErrRefused, &amqp091.Error{Code: 404, Reason: "at amqp://u:p@h", Server: true}),
			"rabbit: refused" + begin + ": 404: at amqp://***@h; declare the exchange",
			[]error{ErrRefused},
		},
		"without a right": {
			pub.channelClosed(ErrForbidden, &amqp091.Error{Code: 403, Reason: "no write access", Server: true}),
			"rabbit: forbidden" + begin + ": 403: no write access; grant the user the missing right with " +
				"rabbitmqctl set_permissions or set_topic_permissions, or renew its token",
			[]error{ErrForbidden},
		},
		"too large": {
			pub.notEncoded(amqpwire.TooLarge("headers", 3, 2)), "rabbit: too large" + begin + ": headers of 3 bytes; the limit is 2",
			[]error{ErrTooLarge},
		},
		"invalid": {pub.notEncoded(&amqpwire.EncodeError{}), "rabbit: invalid" + begin, []error{ErrInvalid}},
		"refused by the broker": {
			pub.notDeclared(&amqp091.Error{Code: 406, Reason: "inequivalent"}),
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
	ch.closed = &amqp091.Error{Code: 404, Server: true, Recover: true}
	l.detach(ch)
	l.attributeClose(ch)
	if len(l.current) != 0 || len(l.p.current) != 0 || len(ch.session.declared) != 0 || len(ch.pending) != 0 || ch.settled != 0 {
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

// The close of a connection is attributed to a message only if no other message of the
// connection can be the cause. The close of a channel concerns only its own messages.
func TestCloseIsAttributedOnlyIfNoOtherMessageCanBeTheCause(t *testing.T) {
	t.Parallel()
	connection := func(code int, text string) *amqp091.Error {
		return &amqp091.Error{Code: code, Reason: text, Server: true}
	}
	channel := func(code int, text string) *amqp091.Error {
		return &amqp091.Error{Code: code, Reason: text, Server: true, Recover: true}
	}
	for _, c := range []struct {
		reason      *amqp091.Error
		alone, busy error // the outcome if the message is the only one on the connection, and the outcome if it is not
	}{
		{channel(amqp091.ContentTooLarge, ""), ErrTooLarge, ErrTooLarge},
		{channel(amqp091.PreconditionFailed, "message size 2000 is larger than configured max size 1000"), ErrTooLarge, ErrTooLarge},
		{channel(amqp091.PreconditionFailed, "user_id property set to 'x' but authenticated user was 'y'"), ErrRefused, ErrRefused},
		{channel(amqp091.NotFound, "no exchange"), ErrRefused, ErrRefused},
		{channel(amqp091.AccessRefused, "write access refused"), ErrForbidden, ErrForbidden},
		{connection(amqp091.AccessRefused, "the token has expired"), ErrUnknown, ErrUnknown},
		{connection(amqp091.FrameError, ""), ErrInvalid, ErrUnknown},
		{connection(amqp091.SyntaxError, ""), ErrInvalid, ErrUnknown},
		{connection(amqp091.UnexpectedFrame, ""), ErrInvalid, ErrUnknown},
		{connection(amqp091.ConnectionForced, "maintenance"), ErrUnknown, ErrUnknown},
		{connection(amqp091.InternalError, ""), ErrUnknown, ErrUnknown},
	} {
		for alone, want := range map[bool]error{true: c.alone, false: c.busy} {
			if got := attributedKind(c.reason, alone); !errors.Is(got, want) {
				t.Errorf("%v, alone: %t: got %v, want %v", c.reason, alone, got, want)
			}
		}
	}
}

func TestOtherChannelsOfTheConnectionCountIfTheyWait(t *testing.T) {
	t.Parallel()
	session, another := &session{}, &session{}
	ch := &confirmChannel{session: session, pending: []*publication{{number: 1}}}
	quiet := &confirmChannel{session: session, pending: []*publication{{number: 1, settled: true}}, settled: 1}
	busy := &confirmChannel{session: session, pending: []*publication{{number: 1}}}
	elsewhere := &confirmChannel{session: another, pending: []*publication{{number: 1}}}
	for _, c := range []struct {
		channels []*confirmChannel
		want     bool
	}{
		{[]*confirmChannel{ch}, true},
		{[]*confirmChannel{quiet, ch, elsewhere}, true},
		{[]*confirmChannel{quiet, ch, busy}, false},
	} {
		l := &confirmLoop{channels: c.channels}
		if got := l.isAloneOnConnection(ch); got != c.want {
			t.Errorf("of %d channels: alone is %t, want %t", len(c.channels), got, c.want)
		}
	}
}

// find must not return a settled publication. Otherwise a second response for a message
// would settle the message twice.
func TestSettledPublicationIsNotFound(t *testing.T) {
	t.Parallel()
	ch := &confirmChannel{}
	for number := range uint64(6) {
		ch.pending = append(ch.pending, &publication{number: number + 1})
	}
	for _, number := range []uint64{2, 4, 5} {
		pub := ch.find(number)
		if pub == nil || pub.number != number {
			t.Fatalf("%d is not found", number)
		}
		ch.settle(pub)
		if ch.find(number) != nil {
			t.Errorf("%d is found although it is settled", number)
		}
	}
	if n := ch.outstanding(); n != 3 {
		t.Errorf("%d are outstanding, want 3", n)
	}
	ch.trim()
	if len(ch.pending) != 6 || ch.oldest().number != 1 {
		t.Errorf("half of them are settled, and %d remain", len(ch.pending))
	}
	ch.pending[0].overdue = true
	if ch.oldest().number != 3 {
		t.Errorf("the oldest is %d, want 3", ch.oldest().number)
	}
	ch.settle(ch.find(1))
	ch.trim()
	if len(ch.pending) != 4 || ch.outstanding() != 2 || ch.find(3) == nil || ch.find(6) == nil || ch.find(7) != nil {
		t.Errorf("those at the front are settled, and %d remain, %d of them outstanding", len(ch.pending), ch.outstanding())
	}
	ch.settle(ch.find(6))
	ch.trim()
	if len(ch.pending) != 1 || ch.settled != 0 || ch.find(3) == nil {
		t.Errorf("most are settled, and %d remain, %d of them settled", len(ch.pending), ch.settled)
	}
}

// Trap 123. A node that confirms nothing is left. If the nodes block the connection, only the first of
// them is left, until a message is confirmed.
func TestNodesThatBlockAreLeftOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var left []bool
		l, _ := confirming(0)
		overdue := func(blocked bool) {
			t.Helper()
			<-time.After(time.Second) // of synctest's clock
			client, broker := net.Pipe()
			defer broker.Close()
			s := &session{
				connection: &connection{others: true, wire: amqpwire.NewConn(client, amqpwire.Config{WriteTimeout: time.Minute})},
				p:          l.p, blocked: blocked,
			}
			pub := &publication{id: "m", done: func(error) {}, deadline: time.Now()}
			l.expire(&confirmChannel{session: s, pending: []*publication{pub}}, time.Now())
			left = append(left, errors.Is(s.wire.Failure(), errNoConfirms))
			s.wire.Abort(net.ErrClosed)
			<-s.wire.Done()
		}
		overdue(false)
		overdue(false)
		overdue(true)
		l.confirmedAt = time.Now().Add(-2 * time.Minute) // before the message was sent
		l.leftAt = time.Time{}
		overdue(true)
		overdue(true)
		l.confirmedAt = time.Now()
		overdue(false)
		if want := []bool{true, true, false, true, false, false}; !slices.Equal(left, want) {
			t.Errorf("left %v, want %v", left, want)
		}
	})
}
