package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
)

// protocol is the part of a protocol that a proxy knows.
type protocol struct {
	// read returns the next message of one side; first is the first of it.
	read func(r *bufio.Reader, first, toServer bool) ([]byte, error)

	// name returns the name of a message to count, or "".
	name func(message []byte, toServer bool) string
}

// Counted AMQP methods. If both sides can send a method, only the server's
// counts.
const (
	amqpConnectionClose = "connection.close"
	amqpBlocked         = "connection.blocked"
	amqpChannelClose    = "channel.close"
	amqpCancel          = "basic.cancel"
	amqpPublish         = "basic.publish"
	amqpReturn          = "basic.return"
	amqpAck             = "basic.ack"     // of a consumer
	amqpConfirm         = "basic.confirm" // the broker's basic.ack
	amqpNack            = "basic.nack"    // the broker's
)

type method struct {
	class, method uint16
	toServer      bool
}

var amqpMethods = map[method]string{
	{10, 50, false}:  amqpConnectionClose,
	{10, 60, false}:  amqpBlocked,
	{20, 40, false}:  amqpChannelClose,
	{60, 30, false}:  amqpCancel,
	{60, 40, true}:   amqpPublish,
	{60, 50, false}:  amqpReturn,
	{60, 80, true}:   amqpAck,
	{60, 80, false}:  amqpConfirm,
	{60, 120, false}: amqpNack,
}

// amqpProtocol is AMQP 0-9-1: a protocol header, then frames.
var amqpProtocol = protocol{
	read: func(r *bufio.Reader, first, toServer bool) ([]byte, error) {
		if first && toServer {
			return readAll(r, nil, 8)
		}
		head, err := readAll(r, nil, 7)
		if err != nil {
			return nil, err
		}
		return readAll(r, head, int(binary.BigEndian.Uint32(head[3:]))+1)
	},
	name: func(frame []byte, toServer bool) string {
		if len(frame) < 12 || frame[0] != 1 {
			return ""
		}
		return amqpMethods[method{binary.BigEndian.Uint16(frame[7:]), binary.BigEndian.Uint16(frame[9:]), toServer}]
	},
}

const postgresCommit = "COMMIT"

// postgresError returns the name under which an error with a SQLSTATE is
// counted.
func postgresError(state string) string { return "error/" + state }

// sqlState returns the code in an error message of the server.
func sqlState(message []byte) string {
	for field := range bytes.SplitSeq(message[5:], []byte{0}) {
		if len(field) > 1 && field[0] == 'C' {
			return string(field[1:])
		}
	}
	return ""
}

// postgresProtocol is the protocol of PostgreSQL. The first message of a client
// has no type.
var postgresProtocol = protocol{
	read: func(r *bufio.Reader, first, toServer bool) ([]byte, error) {
		kind := 1
		if first && toServer {
			kind = 0
		}
		head, err := readAll(r, nil, kind+4)
		if err != nil {
			return nil, err
		}
		return readAll(r, head, int(binary.BigEndian.Uint32(head[kind:]))-4)
	},
	name: func(message []byte, toServer bool) string {
		if toServer && len(message) > 5 && message[0] == 'Q' && bytes.HasPrefix(message[5:], []byte(postgresCommit)) {
			return postgresCommit
		}
		if !toServer && len(message) > 5 && message[0] == 'E' {
			return postgresError(sqlState(message))
		}
		return ""
	},
}

// readAll appends n bytes to before.
func readAll(r io.Reader, before []byte, n int) ([]byte, error) {
	all := make([]byte, len(before)+max(n, 0))
	copy(all, before)
	_, err := io.ReadFull(r, all[len(before):])
	return all, err
}

// cutAt cuts the connection before a message with a name, or exactly after it.
func cutAt(p *proxy, name string, do action) func(m relayed) action {
	return func(m relayed) action {
		if p.protocol.name(m.bytes, m.toServer) == name {
			return do
		}
		return pass
	}
}

// cutBetween cuts the connection between a message with a name and the next
// method. The header and body of a publish have arrived by then.
func cutBetween(p *proxy, name string) func(m relayed) action {
	seen := make(map[*link]bool)
	return func(m relayed) action {
		if p.protocol.name(m.bytes, m.toServer) != name {
			return pass
		}
		if seen[m.link] {
			return cutBefore
		}
		seen[m.link] = true
		return pass
	}
}
