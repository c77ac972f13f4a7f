package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
)

// protocol reads the messages of a network protocol. It gives names to the messages that
// a proxy counts.
type protocol struct {
	// read reads the next message that one side has sent. first is true for
	// the first message of this side.
	read func(r *bufio.Reader, first, toServer bool) ([]byte, error)

	// name returns the name under which a message is counted, or "" if it is not
	// counted.
	name func(message []byte, toServer bool) string
}

// AMQP methods that the proxy counts. If both sides can send a method, it is counted only if the
// broker sends it, except where noted.
const (
	amqpConnectionClose = "connection.close"
	amqpBlocked         = "connection.blocked"
	amqpChannelClose    = "channel.close"
	amqpCancel          = "basic.cancel"
	amqpPublish         = "basic.publish"
	amqpReturn          = "basic.return"
	amqpAck             = "basic.ack"     // sent by a consumer
	amqpConfirm         = "basic.confirm" // the broker's basic.ack
	amqpNack            = "basic.nack"    // sent by the broker
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

// amqpProtocol reads AMQP 0-9-1: a protocol header, and then frames.
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

func postgresError(state string) string { return "error/" + state }

func sqlState(message []byte) string {
	for field := range bytes.SplitSeq(message[5:], []byte{0}) {
		if len(field) > 1 && field[0] == 'C' {
			return string(field[1:])
		}
	}
	return ""
}

// postgresProtocol reads the protocol of PostgreSQL. A message begins with a byte for its
// type, but the first message of a client does not.
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
		if toServer && len(message) > 5 && message[0] == 'Q' && commits(message[5:]) {
			return postgresCommit
		}
		if !toServer && len(message) > 5 && message[0] == 'E' {
			return postgresError(sqlState(message))
		}
		return ""
	},
}

// commits reports whether a query ends with COMMIT. It compares only the end, because
// lazytx sends other statements before COMMIT. It ignores the case, because pgx sends it
// in lower case.
func commits(query []byte) bool {
	query = bytes.TrimSuffix(query, []byte{0})
	last := query[max(0, len(query)-len(postgresCommit)):]
	return bytes.EqualFold(last, []byte(postgresCommit))
}

// readAll reads n bytes from r. It returns the bytes in before, which the
// caller has read already, followed by the n bytes.
func readAll(r io.Reader, before []byte, n int) ([]byte, error) {
	all := make([]byte, len(before)+max(n, 0))
	copy(all, before)
	_, err := io.ReadFull(r, all[len(before):])
	return all, err
}

// cutAt returns a function for proxy.cut. The returned function requests the action do
// for each message with the given name.
func cutAt(p *proxy, name string, do action) func(m relayed) action {
	return func(m relayed) action {
		if p.protocol.name(m.bytes, m.toServer) == name {
			return do
		}
		return pass
	}
}

// cutBetween returns a function for proxy.cut. The returned function cuts a connection
// before the second message with the given name. If this message is a publish, the broker
// has then received the whole first publish and nothing of the second one.
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
