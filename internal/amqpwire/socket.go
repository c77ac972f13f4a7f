package amqpwire

import (
	"cmp"
	"net"
	"sync"
	"time"
)

const (
	// One write to the network has at most this many bytes, so that the write
	// deadline measures progress and not the amount of data.
	writeChunk = 128 << 10

	// How long the writing goroutine tries to write the rest after Close.
	closeTimeout = time.Second

	// A larger buffer is freed after it is written, so that a burst of large
	// messages does not occupy memory for ever.
	keepBuffer = 1 << 20
)

// socket is a net.Conn with buffered writes. Write appends to a buffer, and one
// goroutine writes the buffer to the network: one system call for many
// publishes.
//
// Write never blocks. So no holder of a lock of this module or of amqp091 ever
// waits for the network: publishing cannot hang, and neither can amqp091's
// reader, which replies when the broker closes a channel. The Publisher's window
// bounds the buffer, because outstanding messages include unwritten ones.
type socket struct {
	net.Conn

	timeout time.Duration // for one chunk

	mu      sync.Mutex
	pending []byte
	err     error // of the failed write or of Abort; all later writes return it
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

// Write buffers all of b or fails. A later Write returns an error of the
// network.
func (s *socket) Write(b []byte) (int, error) {
	if err := s.compose(func(pending []byte) []byte { return append(pending, b...) }); err != nil {
		return 0, err
	}
	return len(b), nil
}

// compose lets write append to the buffer.
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

// Close returns at once. The writing goroutine writes the rest of the buffer,
// for up to a second, and closes the socket.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	s.wakeWriter()
	return nil
}

// Abort closes the socket at once and discards the buffer. Later writes return
// cause.
func (s *socket) Abort(cause error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = cause
	}
	s.wakeWriter()
	s.mu.Unlock()
	_ = s.Conn.Close()
}

// Done returns a channel that is closed when the socket is closed and its
// goroutine has ended.
func (s *socket) Done() <-chan struct{} { return s.done }

// Failure returns the error of the failed write or the cause of Abort, or nil.
// amqp091 reports only that the socket is closed.
func (s *socket) Failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// SetDeadline sets the read deadline. The socket sets write deadlines itself.
func (s *socket) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetWriteDeadline does nothing: every chunk has its own deadline.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

// wakeWriter does not block: one pending signal is enough.
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
			s.err = cmp.Or(s.err, err) // the cause of Abort says more
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
