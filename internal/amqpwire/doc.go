// Package amqpwire publishes with confirms over AMQP 0-9-1, on a connection
// that it shares with amqp091.
//
// A [Conn] is the net.Conn beneath an amqp091 connection. amqp091 sets up the
// connection, sends heartbeats, and has channels for declaring and consuming.
// This package adds confirm channels: AMQP channels in confirm mode that
// amqp091 does not see. A [Channel] publishes a [Content] and records the
// broker's [Response] to each publish.
//
// Neither a publish nor the reader of the connection ever waits for a write to the
// network: a Conn writes to a buffer, and one goroutine writes the buffer to the
// network. docs/decisions/0009-publishing-frames.md gives the reasons for this design.
//
// Read the files in this order:
//
//	channel.go        a confirm channel: publish, responses, close
//	conn.go           the connection that amqp091 and the confirm channels share
//	conn_channels.go  the channel numbers, and the end of all channels
//	socket.go         buffered writes to the network
//	content.go        encodes a message
//	fields.go         encodes header values
//	frames.go         frames and methods of the protocol
//	reader.go         reads what the broker sends
//	widen.go          rewrites numbers of types that amqp091 cannot read
//	limits.go         limits of the protocol, and their errors
package amqpwire
