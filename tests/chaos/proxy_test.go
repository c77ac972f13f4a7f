package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// frame returns an AMQP frame that contains a method.
func frame(class, method uint16) []byte {
	body := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, class), method)
	all := binary.BigEndian.AppendUint32([]byte{1, 0, 1}, uint32(len(body)))
	return append(append(all, body...), 0xce)
}

// wire returns a client connection and a server connection, with a proxy between them.
func wire(t *testing.T) (p *proxy, client, server net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	kit.OK(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	p, err = newProxy(listener.Addr().String(), amqpProtocol)
	kit.OK(t, err)
	t.Cleanup(func() { _ = p.Close() })
	client, err = net.Dial("tcp", p.address)
	kit.OK(t, err)
	server, err = listener.Accept()
	kit.OK(t, err)
	for _, conn := range []net.Conn{client, server} {
		t.Cleanup(func() { _ = conn.Close() })
		kit.OK(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	}
	send(t, client, []byte("AMQP\x00\x00\x09\x01"))
	receive(t, server, 8)
	return p, client, server
}

func send(t *testing.T, conn net.Conn, message []byte) {
	t.Helper()
	kit.OK(t, kit.Err(conn.Write(message)))
}

func receive(t *testing.T, conn net.Conn, n int) {
	t.Helper()
	kit.OK(t, kit.Err(io.ReadFull(conn, make([]byte, n))))
}

// over waits for the end of a connection, and returns its error.
func over(t *testing.T, conn net.Conn) error {
	t.Helper()
	n, err := conn.Read(make([]byte, 1))
	if n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection has not ended: %d bytes, %v", n, err)
	}
	return err
}

func TestAProxyCountsAndCutsAtAMessage(t *testing.T) {
	publish := frame(60, 40)
	for _, c := range []struct {
		name    string
		cut     func(p *proxy) func(relayed) action
		arrives int // how many of three messages arrive
	}{
		{"before", func(p *proxy) func(relayed) action { return cutAt(p, amqpPublish, cutBefore) }, 0},
		{"after", func(p *proxy) func(relayed) action { return cutAt(p, amqpPublish, cutAfter) }, 1},
		{"between", func(p *proxy) func(relayed) action { return cutBetween(p, amqpPublish) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, client, server := wire(t)
			send(t, client, frame(10, 11))
			receive(t, server, len(publish))
			p.cut(c.cut(p))
			send(t, client, append(append(append([]byte{}, publish...), publish...), publish...))
			got, _ := io.ReadAll(server) // the connection may end with or without an error
			if len(got) != c.arrives*len(publish) || p.counted("cut") != 1 || p.counted(amqpPublish) == 0 {
				t.Errorf("%d bytes arrived, %d cuts, %d publishes", len(got), p.counted("cut"), p.counted(amqpPublish))
			}
			_ = over(t, client)
		})
	}
}

func TestProxyResetsConnections(t *testing.T) {
	p, client, server := wire(t)
	p.reset()
	for _, conn := range []net.Conn{client, server} {
		if err := over(t, conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
	}
	if p.counted("reset") != 1 {
		t.Errorf("%d resets are counted", p.counted("reset"))
	}
}

// A silent proxy drops data, so it resets the connection when it is no longer silent.
func TestSilentProxyDropsMessages(t *testing.T) {
	p, client, server := wire(t)
	p.set(silent)
	send(t, client, frame(60, 40))
	kit.Eventually(t, time.Minute, "the message is dropped", func() bool { return p.counted("swallowed") > 0 })
	p.set(passing)
	for _, conn := range []net.Conn{client, server} {
		if err := over(t, conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
	}
}

// With a half-open connection the server sees that the connection has ended, and the
// client does not.
func TestHalfOpenProxyClosesOnlyTheServerSide(t *testing.T) {
	p, client, server := wire(t)
	p.set(halfOpen)
	_ = over(t, server)
	for range 3 {
		send(t, client, frame(60, 40))
	}
	kit.Eventually(t, time.Minute, "all are dropped", func() bool { return p.counted("swallowed") >= int64(3*len(frame(60, 40))) })
	p.set(passing)
	if err := over(t, client); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

func TestPostgresMessagesAreNamed(t *testing.T) {
	message := func(kind byte, body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
	}
	for _, c := range []struct {
		message  []byte
		toServer bool
		want     string
	}{
		{message('Q', "COMMIT\x00"), true, postgresCommit},
		{message('Q', "commit\x00"), true, postgresCommit},
		{message('Q', "INSERT INTO a VALUES (1); COMMIT\x00"), true, postgresCommit},
		{message('Q', "COMMIT; SELECT 1\x00"), true, ""},
		{message('Q', "SELECT 1\x00"), true, ""},
		{message('E', "SFATAL\x00VFATAL\x00C28000\x00Mno\x00\x00"), false, postgresError("28000")},
		{message('C', "COMMIT\x00"), false, ""},
	} {
		if got := postgresProtocol.name(c.message, c.toServer); got != c.want {
			t.Errorf("%q is named %q, not %q", c.message, got, c.want)
		}
	}
}
