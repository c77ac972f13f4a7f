package rabbit

import (
	"errors"
	"net"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/amqpwire"
)

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
		if l.current == nil {
			ch := &confirmChannel{session: s}
			l.current, p.channel = ch, ch
		}
		l.nacked(l.current, &publication{key: key})
		if l.current == nil {
			changes++
			if p.channel != nil {
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
