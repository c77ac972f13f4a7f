package kit

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lib/pq"
)

// A new session of PostgreSQL costs 6 ms of CPU time, and its first queries cost as much again,
// because it knows no table yet. Tests need thousands of sessions. So when a test ends, some sessions
// of its database stay for the next test that gets the database. The server has reset them with
// DISCARD ALL, so they are like new ones. The driver's connection is always a new one: [sessions]
// answers its first message as the server has answered at the start of the session. If a test closes a
// session, the database keeps none of the earlier ones, because the test may want a new one.

const (
	// maxKept is how many sessions of a database stay.
	maxKept = 4

	// maxKeptInAll is how many sessions of a server stay in this process. A server accepts 100 by
	// default, and several processes use it.
	maxKeptInAll = 12

	// resetTimeout is how long the server may take to reset a session.
	resetTimeout = 5 * time.Second
)

// sessions opens the connections of one database.
type sessions struct {
	server *postgres

	// These are protected by server.mu.
	keeps bool
	kept  []*session
}

// session is a connection to the server.
type session struct {
	net.Conn

	greeting []byte // the server's answer to the client's first message
	pid      int64
}

// keep calls end, which closes a pool, and keeps some sessions of the pool.
func (s *sessions) keep(end func() error) error {
	s.set(true)
	defer s.set(false)
	return end()
}

func (s *sessions) set(keeps bool) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.keeps = keeps
}

// closes is called when a pool closes a session. It returns whether the session stays.
func (s *sessions) closes() (stays bool) {
	s.server.mu.Lock()
	keeps, room := s.keeps, len(s.kept) < maxKept
	s.server.mu.Unlock()
	if !keeps { // perhaps after ALTER DATABASE ... SET
		s.end()
	}
	return keeps && room
}

// put keeps a session. If these are too many, it ends the sessions of another database.
func (s *sessions) put(one *session) {
	s.server.mu.Lock()
	s.kept = append(s.kept, one)
	s.server.kept++
	var rests *sessions
	for _, other := range s.server.sessions {
		if s.server.kept > maxKeptInAll && other != s && len(other.kept) > 0 {
			rests = other
		}
	}
	s.server.mu.Unlock()
	if rests != nil {
		rests.end()
	}
}

// take returns a session, or nil if none is kept.
func (s *sessions) take() *session {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	n := len(s.kept)
	if n == 0 {
		return nil
	}
	one := s.kept[n-1]
	s.kept = s.kept[:n-1]
	s.server.kept--
	return one
}

// pids returns the server's numbers of the sessions that are kept.
func (s *sessions) pids() pq.Int64Array {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	pids := pq.Int64Array{} // nil would be NULL, with which no number can be compared
	for _, one := range s.kept {
		pids = append(pids, one.pid)
	}
	return pids
}

// end ends the sessions that are kept.
func (s *sessions) end() {
	for one := s.take(); one != nil; one = s.take() {
		_, _ = one.Write(terminate)
		_ = one.Close()
	}
}

// dial is a [DialFunc]. It returns a connection to a session that is kept, or to a new one.
func (s *sessions) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c := &client{sessions: s, network: network, address: address}
	for one := s.take(); one != nil; one = s.take() {
		if one.lives() {
			c.session, c.answers = one, true
			return c, nil
		}
		_ = one.Close()
	}
	return c, c.dial(ctx)
}

// client is the connection of a driver. Its first message decides whether it can use a session that
// was kept.
type client struct {
	*session

	sessions         *sessions
	network, address string

	started    bool   // the first message was written
	greeted    bool   // the server answers it with a greeting
	answers    bool   // the session was kept, and its greeting answers the first message
	unread     []byte // the rest of the greeting
	terminated bool   // the driver ends the session

	closing sync.Once
}

func (c *client) dial(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, c.network, c.address)
	if err != nil {
		return err
	}
	c.session = &session{Conn: conn}
	return nil
}

// Write does not tell the server that the driver ends the session: Close decides that.
func (c *client) Write(b []byte) (int, error) {
	switch {
	case bytes.Equal(b, terminate):
		c.terminated = true
		return len(b), nil
	case c.started:
		return c.Conn.Write(b)
	}
	c.started = true
	if c.answers && starts(b) {
		c.unread = c.greeting
		return len(b), nil
	}
	if c.answers { // it is a request to cancel a query
		c.answers = false
		c.sessions.put(c.session)
		if err := c.dial(context.Background()); err != nil {
			return 0, err
		}
	}
	c.greeted = starts(b)
	return c.Conn.Write(b)
}

func (c *client) Read(b []byte) (int, error) {
	if len(c.unread) > 0 {
		n := copy(b, c.unread)
		c.unread = c.unread[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if c.pid == 0 && c.greeted {
		c.greeting = append(c.greeting, b[:n]...)
		c.pid = backend(c.greeting)
	}
	return n, err
}

// Close ends the session, or resets it and keeps it.
func (c *client) Close() (err error) {
	err = net.ErrClosed
	c.closing.Do(func() {
		if c.sessions.closes() && c.terminated && c.pid != 0 && len(c.unread) == 0 && c.reset() == nil {
			c.sessions.put(c.session)
			err = nil
			return
		}
		if c.terminated {
			_, _ = c.Conn.Write(terminate)
		}
		err = c.Conn.Close()
	})
	return err
}

// A message of PostgreSQL's protocol is a letter, the length of the rest in four bytes, and the rest:
// https://www.postgresql.org/docs/current/protocol-message-formats.html
var (
	terminate = frame('X', "")

	// The second query exists since PostgreSQL 15. Without it, the server would count the rows that an
	// earlier test has written as rows of a later one.
	resets = slices.Concat(frame('Q', "DISCARD ALL\x00"), frame('Q', "SELECT pg_stat_force_next_flush()\x00"))
)

// starts returns whether a client's first message starts a session. All clients of a database start it
// with the same parameters.
func starts(first []byte) bool {
	const version3 = 3 << 16
	return len(first) >= 8 && binary.BigEndian.Uint32(first[4:]) == version3
}

const (
	backendKeyData = 'K'
	errorResponse  = 'E'
	readyForQuery  = 'Z'
)

func frame(letter byte, rest string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{letter}, uint32(4+len(rest))), rest...)
}

// backend returns the number of the server's process if the greeting is complete, or 0.
func backend(greeting []byte) (pid int64) {
	for len(greeting) >= 5 {
		end := 1 + int(binary.BigEndian.Uint32(greeting[1:]))
		switch {
		case end < 5 || end > len(greeting):
			return 0
		case greeting[0] == backendKeyData && end >= 9:
			pid = int64(binary.BigEndian.Uint32(greeting[5:]))
		case greeting[0] == readyForQuery:
			return pid
		}
		greeting = greeting[end:]
	}
	return 0
}

// lives returns false if the server has ended the session, as a test may have asked it to.
func (s *session) lives() (lives bool) {
	socket, ok := s.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) (done bool) {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		lives = errors.Is(err, syscall.EAGAIN) // nothing to read
		return true
	})
	return lives && err == nil
}

var errNotReset = errors.New("the server has not reset the session")

func (s *session) reset() error {
	err := s.SetDeadline(time.Now().Add(resetTimeout))
	if err == nil {
		_, err = s.Write(resets)
	}
	for range 2 {
		if err == nil {
			err = s.awaitReady()
		}
	}
	return errors.Join(err, s.SetDeadline(time.Time{}))
}

// awaitReady reads the answer to a query.
func (s *session) awaitReady() error {
	for {
		var head [5]byte
		if _, err := io.ReadFull(s, head[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(head[1:])
		if n < 4 || n > 1<<16 {
			return errNotReset
		}
		if _, err := io.CopyN(io.Discard, s, int64(n-4)); err != nil {
			return err
		}
		switch head[0] {
		case errorResponse: // for example, a transaction is open
			return errNotReset
		case readyForQuery:
			return nil
		}
	}
}
