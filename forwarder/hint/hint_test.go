package hint_test

import (
	"database/sql"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/forwarder/hint"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

const patience = time.Minute

func listen(t *testing.T, f func()) *hint.Receiver {
	t.Helper()
	r, err := hint.Listen("127.0.0.1:0", f)
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.Check(t, r.Close())
	})
	return r
}

func sender(t *testing.T, config hint.Config, addresses ...string) *hint.Sender {
	t.Helper()
	s, err := hint.NewSender(addresses, config)
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.Check(t, s.Close())
	})
	return s
}

// Each forwarder gets the hint, also if its address is a name. Many hints need only few
// datagrams, and a datagram is sent after the last hint.
func TestEachForwarderGetsTheHint(t *testing.T) {
	t.Parallel()
	var first, second atomic.Int64
	a := listen(t, func() { first.Add(1) })
	b := listen(t, func() { second.Add(1) })
	_, port, err := net.SplitHostPort(b.Addr().String())
	kit.OK(t, err)
	s := sender(t, hint.Config{Logger: kit.Logger(t)}, a.Addr().String(), net.JoinHostPort("localhost", port))
	began := time.Now()
	for range 100_000 {
		s.Hint()
	}
	kit.Eventually(t, patience, "both got it", func() bool { return first.Load() > 0 && second.Load() > 0 })
	if most := time.Since(began).Milliseconds() + 2; first.Load() > most {
		t.Errorf("%d datagrams in %d ms", first.Load(), most)
	}
	for range 3 {
		before := first.Load()
		s.Hint()
		kit.Eventually(t, patience, "a later hint", func() bool { return first.Load() > before })
	}
}

// The receiver ignores other datagrams. They do not stop it.
func TestOtherDatagramsAreIgnored(t *testing.T) {
	t.Parallel()
	hints := make(chan struct{}, 100)
	r := listen(t, func() { hints <- struct{}{} })
	conn, err := net.Dial("udp", r.Addr().String())
	kit.OK(t, err)
	defer conn.Close()
	for _, text := range []string{"x", "once hint 10", "once hint", ""} {
		kit.OK(t, kit.Err(conn.Write([]byte(text))))
	}
	if _, err := conn.Write([]byte("once hint 1")); err != nil { // datagrams on the loopback interface keep their order
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(patience):
		t.Fatal("the hint was not received")
	}
	if n := len(hints); n > 0 {
		t.Errorf("%d other datagrams are hints", n)
	}
}

func TestInvalidAddressIsRefused(t *testing.T) {
	t.Parallel()
	for _, addresses := range [][]string{nil, {"forwarder"}, {"forwarder:7946", ":7946"}, {"forwarder:nothing"}} {
		s, err := hint.NewSender(addresses, hint.Config{})
		if err == nil {
			t.Errorf("%q is accepted", addresses)
			_ = s.Close()
		}
	}
	if r, err := hint.Listen("127.0.0.1:0", nil); err == nil {
		t.Error("a nil function is accepted")
		_ = r.Close()
	}
}

// A name that does not exist is logged once. It does not block producers, or hints to
// other forwarders.
func TestUnknownHostIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	r := listen(t, func() { got.Add(1) })
	logs := &kit.Logs{}
	s := sender(t, hint.Config{Logger: logs}, "forwarder.invalid:7946", r.Addr().String())
	for n := range int64(3) {
		s.Hint()
		kit.Eventually(t, patience, "the other one gets it", func() bool { return got.Load() > n })
	}
	if n := logs.Count("Host of a forwarder cannot be found"); n != 1 {
		t.Errorf("%d lines: %q", n, logs.Lines())
	}
}

// broker is a publisher that counts its messages.
type broker struct{ sent atomic.Int64 }

func (b *broker) Publish(_ string, msgs ...*message.Message) error {
	b.sent.Add(int64(len(msgs)))
	return nil
}

func (b *broker) Close() error { return nil }

// A hint from another process makes a forwarder read immediately. If hints are lost,
// its poll finds the messages.
func TestHintWakesAForwarder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		poll time.Duration
		lost bool
	}{
		"with hints":           {poll: time.Hour},
		"all hints are lost":   {poll: 100 * time.Millisecond, lost: true},
		"hints while it polls": {poll: 5 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := kit.Postgres(t).DB
			kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
			b := &broker{}
			f, err := forwarder.New(db, b, forwarder.Config{PollMin: c.poll, PollMax: c.poll, Logger: kit.Logger(t)})
			kit.OK(t, err)
			r := listen(t, f.Hint)
			s := sender(t, hint.Config{}, r.Addr().String())
			if c.lost {
				kit.OK(t, r.Close())
			}
			ended := kit.Go(func() error { return f.Run(t.Context()) })
			t.Cleanup(func() {
				kit.Check(t, f.Close())
				kit.Check(t, <-ended)
			})
			<-f.Running()
			for n := range int64(5) {
				kit.OK(t, outbox.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
					return events.Publish("orders.placed", message.NewMessage(fmt.Sprint(n), nil))
				}, s.Hint))
				kit.Eventually(t, patience, "it is sent", func() bool { return b.sent.Load() == n+1 })
			}
		})
	}
}
