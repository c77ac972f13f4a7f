package amqpwire

import (
	"cmp"
	"net"
	"sync"
	"time"
)

const (
	// writeChunk is the maximum number of bytes of one write, so that the deadline limits the time
	// without progress, and not for all data.
	writeChunk = 128 << 10

	// closeTimeout limits writing the rest of the buffer after Close.
	closeTimeout = time.Second

	// keepBuffer is the maximum size of a buffer that is used again, so that a burst of large
	// messages does not use memory forever.
	keepBuffer = 1 << 20
)

// socket is a net.Conn with buffered writes: one goroutine writes the buffer to the network, many
// publishes in one system call.
//
// Write never blocks, so no goroutine waits for the network while it holds a lock of this module or
// of amqp091, whose reader writes a reply when the broker closes a channel. The Publisher's window
// limits the buffer, because messages that are not written yet count as unconfirmed.
type socket struct {
	net.Conn

	timeout time.Duration // time limit for writing one chunk

	mu      sync.Mutex
	pending []byte
	err     error // error of the failed write, or the cause passed to Abort; all later writes return it
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

// Write buffers all of b, or returns an error, also that of an earlier write to the network.
func (s *socket) Write(b []byte) (int, error) {
	if err := s.compose(func(pending []byte) []byte { return append(pending, b...) }); err != nil {
		return 0, err
	}
	return len(b), nil
}

// compose returns an error if the socket is closed or has failed.
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
		s.wakeWriter()
	}
	s.pending = write(s.pending)
	return nil
}

// Close returns immediately. The rest of the buffer is then written for at most a second, before
// the socket is closed.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	s.wakeWriter()
	return nil
}

// Abort closes the socket immediately, and discards the buffer. Later writes return cause.
func (s *socket) Abort(cause error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = cause
	}
	s.wakeWriter()
	s.mu.Unlock()
	_ = s.Conn.Close()
}

// Done is closed when the socket is closed and the writing goroutine has ended.
func (s *socket) Done() <-chan struct{} { return s.done }

// Failure returns the error of the failed write, or the cause passed to Abort, or nil. amqp091
// reports only that the socket is closed.
func (s *socket) Failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// SetDeadline sets the read deadline. The socket sets write deadlines itself, for each chunk.
func (s *socket) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetWriteDeadline does nothing, see SetDeadline.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

// One pending signal is enough.
func (s *socket) wakeWriter() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

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
			timeout = min(timeout, closeTimeout)
		}
		if err := s.writeOut(batch, timeout); err != nil {
			s.mu.Lock()
			s.err = cmp.Or(s.err, err) // keep the cause passed to Abort, because it says more
			s.mu.Unlock()
			return
		}
		if closing {
			return
		}
		if cap(batch) > keepBuffer {
			batch = nil
		}
	}
}

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
