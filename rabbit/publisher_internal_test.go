package rabbit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

func TestRoomInTheWindow(t *testing.T) {
	for _, c := range []struct {
		count, bytes, size int
		want               bool
	}{
		{0, 0, 50, true},
		{1, 50, 50, true},
		{1, 50, 51, false},  // exceeds WindowBytes
		{2, 2, 1, false},    // exceeds Window
		{0, 0, 1000, true},  // exceeds WindowBytes, but is the only message
		{1, 1, 1000, false}, // exceeds WindowBytes, and is not the only message
		{1, 1000, 1, false}, // another message exceeds WindowBytes
	} {
		p := &Publisher{cfg: PublisherConfig{Window: 2, WindowBytes: 100}, count: c.count, bytes: c.bytes}
		if got := p.hasRoom(c.size); got != c.want {
			t.Errorf("%d messages of %d bytes outstanding, another of %d bytes: %v, want %v", c.count, c.bytes, c.size, got, c.want)
		}
	}
}

// The error of a message that cannot be sent contains the reason.
func TestReasonWhyNoMessageCanBeSent(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	for name, c := range map[string]struct {
		session *session
		channel *confirmChannel
		want    error
	}{
		"no connection":             {nil, nil, lost},
		"a blocked connection":      {&session{blocked: true}, &confirmChannel{}, errBlocked},
		"no channel":                {&session{}, nil, errReopening},
		"blocked without a channel": {&session{blocked: true}, nil, errBlocked},
		"ready":                     {&session{}, &confirmChannel{}, nil},
	} {
		p := &Publisher{session: c.session, down: lost}
		if c.channel != nil {
			p.current = []*confirmChannel{c.channel}
		}
		if got := p.unready(); !errors.Is(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// header is a marshaler that sends one header.
type header struct {
	amqp.DefaultMarshaler

	value any
}

func (h header) Marshal(*message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Headers: amqp091.Table{"header": h.value}}, nil
}

// A message whose marshaler sets a header that AMQP cannot carry is unacceptable, and is
// not sent without this header.
func TestHeaderWithoutAnAMQPTypeIsUnacceptable(t *testing.T) {
	t.Parallel()
	for _, value := range []any{uint64(1), struct{}{}, []any{uint32(1)}, amqp091.Table{"nested": uint16(1)}} {
		config := amqp.NewDurableQueueConfig("amqp://unused")
		config.Marshaler = header{value: value}
		err := (&Publisher{config: config}).prepare(&publication{topic: "t"}, new(amqpwire.Content), message.NewMessage("m", nil))
		if refused, ok := errors.AsType[*PublishError](err); !ok || !refused.Unacceptable() || !errors.Is(err, ErrInvalid) {
			t.Errorf("%T: got %v, want an unacceptable message", value, err)
		}
	}
}

// If the broker does not open a confirm channel, the Publisher does not use the
// channel, and closes the connection. Close does not wait for the broker's reply.
func TestChannelThatIsNotOpenedIsNotUsed(t *testing.T) {
	t.Parallel()
	conn := &mute{muted: make(chan struct{})}
	config := amqp.ConnectionConfig{AmqpURI: kit.Rabbit(t).URL, AmqpConfig: &amqp091.Config{
		Dial: func(network, address string) (_ net.Conn, err error) {
			conn.Conn, err = new(net.Dialer).DialContext(t.Context(), network, address)
			return conn, err
		},
	}}
	settings := dialSettings{confirmChannels: true, dialTimeout: time.Minute, writeTimeout: time.Minute, nodes: newNodes(nil)}
	c, err := connect(t.Context(), config, settings)
	kit.OK(t, err)
	defer c.end(false)
	closing, cancel := context.WithCancel(t.Context())
	cancel()
	s := &session{connection: c, p: &Publisher{ctx: closing, wake: make(chan struct{}, 1)}}
	close(conn.muted)
	if err := s.ensureChannels(); err == nil || s.p.current != nil || s.p.channels != nil {
		t.Errorf("got %v, and %d channels; want an error", err, len(s.p.channels))
	}
}

// mute is a connection that receives nothing after the channel muted is closed.
type mute struct {
	net.Conn

	muted chan struct{}
}

func (m *mute) Read(b []byte) (int, error) {
	for {
		n, err := m.Conn.Read(b)
		if err != nil {
			return n, err
		}
		select {
		case <-m.muted:
		default:
			return n, nil
		}
	}
}

// The Publisher has replaced a channel. If this old channel is closed much later, the
// close must not affect the current channel.
func TestCloseOfAnOldChannelKeepsTheCurrentOne(t *testing.T) {
	t.Parallel()
	config := amqp.NewDurableQueueConfig(kit.Rabbit(t).URL)
	p, err := NewPublisher(config, PublisherConfig{ReadyTimeout: time.Minute})
	kit.OK(t, err)
	t.Cleanup(func() { _ = p.Close() })
	current := func() *confirmChannel {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.current) == 0 {
			return nil
		}
		return p.current[0]
	}
	retire := func(ch *confirmChannel) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.retire(ch)
	}
	kit.Eventually(t, time.Minute, "a channel is open", func() bool { return current() != nil })
	first := current()
	retire(first)
	kit.Eventually(t, time.Minute, "another channel is open", func() bool { return current() != nil })
	second := current()
	if second == first {
		t.Fatal("the retired channel is the current one again")
	}
	retire(first)
	if current() != second {
		t.Error("retiring the old channel has retired the current one")
	}
}

// A declaration counts as refused only if the broker or the TopologyBuilder returned
// the error. After any other error, the exchange is declared again.
func TestRefusedDeclarationsAreToldFromLostConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errors.New("from the TopologyBuilder"), true},
		{amqp091.ErrClosed, false},
		{&amqp091.Error{Code: amqp091.PreconditionFailed, Recover: true, Server: true}, true},
		{&amqp091.Error{Code: amqp091.AccessRefused, Recover: true, Server: true}, true},
		{&amqp091.Error{Code: amqp091.CommandInvalid, Server: true}, true}, // the broker closes the connection
		{&amqp091.Error{Code: amqp091.NotAllowed, Server: true}, true},
		{&amqp091.Error{Code: amqp091.NotImplemented, Server: true}, true},
		{&amqp091.Error{Code: amqp091.ConnectionForced, Server: true}, false},
		{&amqp091.Error{Code: amqp091.InternalError, Server: true}, true},
		{&amqp091.Error{Code: amqp091.NotAllowed, Recover: true}, false}, // the client's own error
	} {
		for _, err := range []error{c.err, fmt.Errorf("declare: %w", c.err)} {
			if got := refusesDeclaration(err); got != c.want {
				t.Errorf("refusesDeclaration(%v) is %t", err, got)
			}
		}
	}
}

// If the broker fails while it declares an exchange, this is an outage of the topic: no
// attempt is counted, and other topics go on.
func TestBrokerThatFailsWhileItDeclaresAnExchangeIsAnOutageOfTheTopic(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err                            error
		unavailable, oneTopic, refused bool
	}{
		{&amqp091.Error{Code: amqp091.InternalError, Server: true}, true, true, false},
		{&amqp091.Error{Code: amqp091.AccessRefused, Server: true, Recover: true}, true, true, false},
		{&amqp091.Error{Code: amqp091.CommandInvalid, Server: true}, false, false, true},
		{&undeclaredError{&amqp091.Error{Code: amqp091.NotAllowed, Server: true}}, true, true, false},
		{errors.New("from the TopologyBuilder"), false, false, true},
	} {
		e := (&publication{}).notDeclared(c.err)
		if e.Unavailable() != c.unavailable || e.OneTopic() != c.oneTopic || e.Refused() != c.refused {
			t.Errorf("%v: unavailable is %t, one topic %t, refused %t", c.err, e.Unavailable(), e.OneTopic(), e.Refused())
		}
	}
}

// Nobody can declare an exchange with a reserved name. So this is no missing right, which
// an operator grants, and attempts are counted.
func TestExchangeWithAReservedNameIsRefused(t *testing.T) {
	t.Parallel()
	e := (&publication{exchange: "amq.fake"}).notDeclared(&amqp091.Error{Code: amqp091.AccessRefused, Server: true, Recover: true})
	if !e.Refused() || e.Unavailable() {
		t.Errorf("%v: refused is %t, unavailable %t", e, e.Refused(), e.Unavailable())
	}
}

// A second declaration of an exchange waits for the first, for up to DialTimeout after its beginning.
// The declaration of another exchange waits in the same way if no channel is free.
func TestDeclarationWaitsForTheSameExchange(t *testing.T) {
	t.Parallel()
	for _, exchange := range []string{"x", "y"} {
		synctest.Test(t, func(t *testing.T) {
			d := &declaration{began: time.Now(), done: make(chan struct{})}
			c := &connection{amqp: &amqp091.Connection{Config: amqp091.Config{ChannelMax: 1}}, timeout: time.Minute}
			s := &session{p: &Publisher{}, connection: c, declaring: map[string]*declaration{"x": d}}
			declare := func() error {
				s.p.mu.Lock()
				defer s.p.mu.Unlock()
				return s.declare(exchange)
			}
			declared := make(chan error, 1)
			go func() { declared <- declare() }()
			synctest.Wait()
			<-time.After(59 * time.Second)
			if len(declared) > 0 {
				t.Error("it did not wait")
			}
			for range 2 {
				if err := declare(); !isUndeclared(err) || time.Since(d.began) != time.Minute {
					t.Errorf("%s: got %v after %v", exchange, err, time.Since(d.began))
				}
			}
			if err := <-declared; !isUndeclared(err) {
				t.Errorf("%s: got %v", exchange, err)
			}
			d.began = time.Now()
			go func() { declared <- declare() }()
			synctest.Wait()
			d.err = errors.New("refused")
			close(d.done)
			want := map[string]error{"x": d.err}[exchange] // a refusal says nothing about another exchange
			if err := <-declared; !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", exchange, err, want)
			}
		})
	}
}

func isUndeclared(err error) bool {
	_, ok := errors.AsType[*undeclaredError](err)
	return ok
}

// breaking is a topology builder whose declaration fails because the socket does.
type breaking struct {
	amqp.DefaultTopologyBuilder

	wire *amqpwire.Conn
}

func (b *breaking) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error {
	err := errors.New("write: broken pipe")
	b.wire.Abort(err)
	return err
}

// If the connection is lost during a declaration, the Publisher has no confirm channel
// until it reconnects. Messages that are sent meanwhile wait for ReadyTimeout.
func TestLostConnectionDuringADeclarationIsAnOutage(t *testing.T) {
	t.Parallel()
	const failing = "a socket that fails"
	for name, current := range map[string]bool{"the current connection": true, "an old connection": false, failing: true} {
		c := brokerConnection(t)
		config := amqp.NewDurablePubSubConfig("amqp://unused", nil)
		config.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
		p := &Publisher{config: config, ctx: t.Context(), changed: make(chan struct{})}
		s := p.newSession(c)
		p.session, p.current = s, []*confirmChannel{{}}
		if !current {
			p.session = &session{}
		}
		if name == failing {
			p.config.TopologyBuilder = &breaking{wire: c.wire}
		} else {
			c.end(true)
		}
		p.mu.Lock()
		err := s.declare("x")
		p.mu.Unlock()
		if err != nil || s.isDeclared("x") || len(s.declaring) != 0 {
			t.Errorf("%s: got %v, want no refusal; declared is %t", name, err, s.isDeclared("x"))
		}
		if (len(p.current) == 0) != current || p.unreadySince.IsZero() == current {
			t.Errorf("%s: the channels are %v, and no message can be sent since %v", name, p.current, p.unreadySince)
		}
	}
}

// nacking returns a confirm loop, its network connection and the function nack. Each
// call of nack simulates a nack on the current channel, and returns how often the loop
// has changed the channel so far.
func nacking(t *testing.T) (l *confirmLoop, wire *amqpwire.Conn, nack func(key string) (changes int)) {
	t.Helper()
	ours, _ := net.Pipe()
	wire = amqpwire.NewConn(ours, amqpwire.Config{WriteTimeout: time.Minute})
	p := &Publisher{cfg: PublisherConfig{Logger: watermill.NopLogger{}}, reopen: make(chan struct{}, 1)}
	s := &session{connection: &connection{wire: wire}}
	p.session = s
	l = &confirmLoop{p: p, streaks: make(map[destination]*nackStreak)}
	changes := 0
	return l, wire, func(key string) int {
		if len(l.current) == 0 {
			ch := &confirmChannel{session: s}
			l.current, p.current = []*confirmChannel{ch}, []*confirmChannel{ch}
		}
		l.nacked(l.current[0], &publication{key: key})
		if len(l.current) == 0 {
			changes++
			if len(p.current) != 0 {
				t.Error("new messages are sent over the old channel")
			}
		}
		return changes
	}
}

// After three consecutive nacks the Publisher opens a new channel. It does this only
// once in a certain time, which grows from a second to a minute.
func TestNacksChangeTheChannelAfterGrowingPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, wire, nack := nacking(t)
		pause, want := time.Duration(0), 0
		for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			next := time.Duration(seconds) * time.Second
			pass(pause)
			for i := range 3 {
				if got := nack("k"); i < 2 && got != want {
					t.Fatalf("%d nacks have changed the channel", i+1)
				}
			}
			l.confirms++ // a confirm of another destination
			want++
			if got := nack("k"); got != want {
				t.Fatalf("the channel was changed %d times, want %d", got, want)
			}
			nack("k")
			pause = next - 1
			pass(pause)
			if got := nack("k"); got != want {
				t.Fatalf("the channel was changed before %v have passed", next)
			}
			pause = 1
			l.streaks[destination{"", "k"}].nacks = 0
		}
		if err := wire.Failure(); err != nil {
			t.Errorf("the connection is given up: %v", err)
		}
		if len(l.p.reopen) != 1 {
			t.Error("no new channel is asked for")
		}
		wire.Abort(net.ErrClosed)
		<-wire.Done()
	})
}

// If no message was confirmed since the last change of the channel, the Publisher tries
// another connection.
func TestOnlyNacksGiveUpTheConnection(t *testing.T) {
	t.Parallel()
	for _, confirms := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l, wire, nack := nacking(t)
			for range 3 {
				nack("k")
			}
			if err := wire.Failure(); err != nil {
				t.Fatalf("the first change gives up the connection: %v", err)
			}
			pass(time.Second)
			if confirms {
				l.confirmed(&publication{key: "other"})
			}
			for range 3 {
				nack("k")
			}
			if got := errors.Is(wire.Failure(), errOnlyNacks); got == confirms {
				t.Errorf("another message was confirmed: %t; the connection is given up: %t", confirms, got)
			}
			wire.Abort(net.ErrClosed)
			<-wire.Done()
		})
	}
}

// A confirm ends only the streak of its own destination. A nack on an old channel does
// not count.
func TestConfirmEndsAStreakOfNacks(t *testing.T) {
	t.Parallel()
	l, wire, nack := nacking(t)
	defer wire.Abort(net.ErrClosed)
	nack("a")
	nack("a")
	nack("b")
	nack("b")
	l.confirmed(&publication{key: "a"})
	if got := nack("a"); got != 0 || l.confirms != 1 {
		t.Errorf("the channel was changed after a confirm; %d confirms", l.confirms)
	}
	l.nacked(&confirmChannel{}, &publication{key: "b"})
	if l.current == nil {
		t.Error("a nack on an old channel has changed the current one")
	}
	if got := nack("b"); got != 1 {
		t.Errorf("the channel was changed %d times, want once", got)
	}
	for i := range 3 * maxStreaks {
		nack(strconv.Itoa(i))
		if len(l.streaks) > maxStreaks {
			t.Fatalf("%d destinations are remembered, want at most %d", len(l.streaks), maxStreaks)
		}
	}
}

// Close unregisters the callbacks of the gauges. Otherwise the provider would keep the
// closed publisher in memory.
func TestCloseEndsTheObservation(t *testing.T) {
	t.Parallel()
	config := amqp.NewDurableQueueConfig("amqp://127.0.0.1:1")
	o := new(kit.Observers)
	p, err := NewPublisher(config, PublisherConfig{MeterProvider: o, Logger: watermill.NopLogger{}})
	kit.OK(t, err)
	s, err := NewSubscriber(config, SubscriberConfig{MeterProvider: o, Logger: watermill.NopLogger{}})
	kit.OK(t, err)
	if n := o.Registered(); n != 2 {
		t.Errorf("%d are observed, want 2", n)
	}
	for _, end := range []func() error{p.Close, p.Close, s.Close, s.Close} {
		kit.Check(t, end())
	}
	if n := o.Registered(); n != 0 {
		t.Errorf("%d are observed after Close, want none", n)
	}
}

// The size of a message in the window is the size of its headers plus the size of its
// body.
func TestSizeOfAPublicationHasHeadersAndBody(t *testing.T) {
	t.Parallel()
	for _, marshaler := range []amqp.Marshaler{Marshaler{}, amqp.DefaultMarshaler{}} {
		config := amqp.NewDurableQueueConfig("amqp://unused")
		config.Marshaler = marshaler
		p := &Publisher{config: config}
		sizes := map[string]int{}
		for name, msg := range map[string]*message.Message{
			"empty": message.NewMessage("id", nil), "body": message.NewMessage("id", make([]byte, 1000)), "header": message.NewMessage("id", nil),
		} {
			if name == "header" {
				msg.Metadata.Set("k", strings.Repeat("v", 500))
			}
			pub := &publication{topic: "t"}
			kit.OK(t, p.prepare(pub, new(amqpwire.Content), msg))
			sizes[name] = pub.size
		}
		if sizes["body"] != sizes["empty"]+1000 || sizes["header"] != sizes["empty"]+500+1+1+1+4 || sizes["empty"] < 20 {
			t.Errorf("the sizes are %v", sizes)
		}
	}
}

// CurrentChannels returns the number of channels that get new messages.
func CurrentChannels(p *Publisher) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.current)
}
