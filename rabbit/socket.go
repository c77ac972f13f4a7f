package rabbit

import (
	"cmp"
	"net"
	"sync"
	"time"
)

const (
	// One write to the network takes at most this much, so that the deadline is
	// about progress and not about how much there is to write.
	writeChunk = 128 << 10

	// How long Close tries to write what is left.
	lastWrite = time.Second
)

// socket is the net.Conn beneath an AMQP connection. Write only appends to a
// buffer, and one goroutine writes out whatever has come together: one system
// call for many publishes.
//
// So Write never blocks, and nothing that holds a lock of ours or of amqp091
// ever waits for the network: publishing cannot hang, and neither can amqp091's
// reader, which answers the close of a channel. The buffer is bounded by the
// Publisher's window, since what is outstanding includes what is unwritten.
type socket struct {
	net.Conn

	timeout time.Duration // for one chunk

	mu      sync.Mutex
	pending []byte
	err     error // of the write that failed, or of abort; given by all later writes
	closing bool

	wake chan struct{} // wakes the writing goroutine
	done chan struct{} // closed when the writing goroutine has ended
}

func newSocket(conn net.Conn, timeout time.Duration) *socket {
	s := &socket{
		Conn:    conn,
		timeout: timeout,
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	go s.flush()
	return s
}

// Write takes all of b or nothing. An error of the network shows at the next
// Write.
func (s *socket) Write(b []byte) (int, error) {
	if err := s.compose(func(pending []byte) []byte { return append(pending, b...) }); err != nil {
		return 0, err
	}
	return len(b), nil
}

// compose is a Write of what write appends to its argument.
func (s *socket) compose(write func(pending []byte) []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.closing:
		return net.ErrClosed
	}
	if len(s.pending) == 0 {
		notify(s.wake)
	}
	s.pending = write(s.pending)
	return nil
}

// Close lets the writing goroutine write what is left, for a short time, and
// close the socket. It does not wait for it.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	notify(s.wake)
	return nil
}

// abort closes the socket at once, whatever hangs on it.
func (s *socket) abort(cause error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = cause
	}
	notify(s.wake)
	s.mu.Unlock()
	_ = s.Conn.Close()
}

// failure is what the socket failed with or was aborted for, if it was. What
// amqp091 says then is only that the socket is closed.
func (s *socket) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// SetDeadline sets the deadline for reads. Those for writes are set here.
func (s *socket) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetWriteDeadline does nothing: every chunk has a deadline of its own.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

func (s *socket) flush() {
	defer close(s.done)
	defer s.Conn.Close()
	var batch []byte
	for range s.wake {
		s.mu.Lock()
		batch, s.pending = s.pending, batch[:0]
		failed, closing := s.err != nil, s.closing
		s.mu.Unlock()

		if failed {
			return
		}
		timeout := s.timeout
		if closing {
			timeout = min(timeout, lastWrite)
		}
		if err := s.writeOut(batch, timeout); err != nil {
			s.mu.Lock()
			s.err = cmp.Or(s.err, err) // what it was aborted for says more
			s.mu.Unlock()
			return
		}
		if closing {
			return
		}
		if cap(batch) > keepBuffer {
			batch = nil // a burst of large messages should not stay for ever
		}
	}
}

const keepBuffer = 1 << 20

func (s *socket) writeOut(batch []byte, timeout time.Duration) error {
	for len(batch) > 0 {
		chunk := batch[:min(len(batch), writeChunk)]
		if err := s.Conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		n, err := s.Conn.Write(chunk)
		if err != nil {
			return err
		}
		batch = batch[n:]
	}
	return nil
}
