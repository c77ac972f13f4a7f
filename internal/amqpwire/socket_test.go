package amqpwire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// pipe returns a socket, and the other end of its connection. Only the test reads from
// the other end.
func pipe(t *testing.T) (s *socket, other net.Conn) {
	t.Helper()
	ours, other := net.Pipe()
	s = newSocket(ours, time.Minute)
	t.Cleanup(func() {
		s.Abort(net.ErrClosed)
		<-s.done
	})
	return s, other
}

func TestSocketWritesInOrderAndNeverBlocks(t *testing.T) {
	s, other := pipe(t)
	var want bytes.Buffer
	for i := range 100_000 { // enough for many chunks
		piece := []byte{byte(i), byte(i >> 8), byte(i >> 16)}
		want.Write(piece)
		if n, err := s.Write(piece); n != len(piece) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("late")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	got, err := io.ReadAll(other)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("got %d bytes, want %d, in order", len(got), want.Len())
	}
	<-s.done
}

func TestSocketGivesUpAfterTheTimeout(t *testing.T) {
	ours, other := net.Pipe()
	defer other.Close()
	s := newSocket(ours, time.Millisecond)
	if _, err := s.Write([]byte("nobody reads this")); err != nil {
		t.Fatal(err)
	}
	<-s.done
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("the next Write does not return the error of the failed one")
	}
	if _, err := other.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the socket is still open: %v", err)
	}
}

func TestSocketAborts(t *testing.T) {
	s, other := pipe(t)
	if _, err := s.Write([]byte("nobody reads all of this")); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	s.Abort(net.ErrClosed)
	<-s.done
	if _, err := s.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write: %v, want the cause of Abort", err)
	}
}
