package amqpwire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
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

// timed returns a socket that uses the fake clock of the test's synctest bubble.
func timed(timeout time.Duration) (s *socket, other net.Conn) {
	ours, other := net.Pipe()
	return newSocket(ours, timeout), other
}

// The timeout is for one chunk. A slow network that makes progress does not cause a
// failure.
func TestWriteTimeoutIsForProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, other := timed(time.Minute)
		const chunks = 4
		if _, err := s.Write(make([]byte, chunks*writeChunk)); err != nil {
			t.Fatal(err)
		}
		for range chunks {
			time.Sleep(time.Minute - 1) //nolint:forbidigo // on the clock of synctest
			if n, err := io.ReadFull(other, make([]byte, writeChunk)); err != nil {
				t.Fatal(n, err)
			}
		}
		if _, err := s.Write([]byte("nobody reads this")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-s.Done()
		if took := time.Since(began); took != time.Minute || !errors.Is(s.Failure(), os.ErrDeadlineExceeded) {
			t.Errorf("the write failed after %v with %v, want the timeout after a minute", took, s.Failure())
		}
	})
}

// After Close, the socket tries to write the rest of its buffer for at most a second.
func TestCloseWritesTheRestForASecond(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]time.Duration{time.Minute: time.Second, time.Millisecond: time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := timed(timeout)
			if _, err := s.Write([]byte("nobody reads this")); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			<-s.Done()
			if took := time.Since(began); took != want {
				t.Errorf("with a timeout of %v, the socket is closed after %v, want %v", timeout, took, want)
			}
		})
	}
}

// An idle socket is closed immediately.
func TestCloseOfAnIdleSocketIsImmediate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, other := timed(time.Minute)
		began := time.Now()
		_ = s.Close()
		_ = s.Close()
		<-s.Done()
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		if _, err := other.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the other end got %v, want the end", err)
		}
	})
}

// Failure returns the first cause, because it says more than the errors that follow
// from it.
func TestFirstCauseOfAFailureStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := timed(time.Minute)
		if err := s.Failure(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write([]byte("nobody reads this")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the write has begun
		first := errors.New("first")
		s.Abort(first)
		s.Abort(errors.New("second"))
		<-s.Done()
		if err := s.Failure(); !errors.Is(err, first) {
			t.Errorf("Failure is %v, want the first", err)
		}
		if n, err := s.Write([]byte("x")); n != 0 || !errors.Is(err, first) {
			t.Errorf("Write: %d, %v, want the first cause", n, err)
		}
	})
}

// amqp091 sets deadlines for reading. They must not shorten the deadlines for writing.
func TestDeadlinesAreForReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, other := timed(time.Minute)
		if _, err := s.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the write has begun
		if err := s.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Error(err)
		}
		if err := s.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			t.Error(err)
		}
		began := time.Now()
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("Read: %v after %v, want the deadline after two seconds", err, time.Since(began))
		}
		if n, err := other.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("the byte is not written: %v", err)
		}
		s.Abort(net.ErrClosed)
		<-s.Done()
	})
}

// The buffer is reused, unless it has become too large.
func TestLargeBuffersAreFreed(t *testing.T) {
	t.Parallel()
	for size, kept := range map[int]bool{100: true, keepBuffer: true, keepBuffer + 1: false} {
		synctest.Test(t, func(t *testing.T) {
			s, other := timed(time.Minute)
			buffer := make([]byte, size)
			_ = s.compose(func([]byte) []byte { return buffer[:size:size] })
			if _, err := io.ReadFull(other, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, err := s.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the buffers were swapped
			s.mu.Lock()
			if got := cap(s.pending); (got == size) != kept {
				t.Errorf("after %d bytes, the buffer has room for %d", size, got)
			}
			s.mu.Unlock()
			s.Abort(net.ErrClosed)
			<-s.Done()
		})
	}
}
