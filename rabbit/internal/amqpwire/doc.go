// Package amqpwire publishes with confirms over AMQP 0-9-1, on a connection that it shares with
// amqp091.
//
// A [Conn] is the net.Conn beneath an amqp091 connection. amqp091 sets up the connection, sends
// heartbeats, and has channels for declaring and consuming. This package adds confirm channels:
// AMQP channels in confirm mode that amqp091 does not see. A [Channel] publishes a [Content] and
// records the broker's [Response] to each publish.
//
// Neither a publish nor the reader of the connection ever waits for a write to the network: a Conn
// writes to a buffer, and one goroutine writes the buffer to the network.
// docs/decisions/0009-publishing-frames.md gives the reasons for this design.
package amqpwire
