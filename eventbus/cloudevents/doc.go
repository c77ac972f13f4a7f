// Package cloudevents sends and receives CloudEvents 1.0 (https://cloudevents.io) over any
// Watermill transport. [Marshaler] is a marshaler for Watermill's cqrs component and for
// once.Handle. The id of an event is the id of its message, so the inbox recognizes a duplicate
// whichever system has sent it.
//
// In binary mode, the attributes are metadata, and the payload is the data. In structured mode, the
// payload is a JSON object with both. A receiver accepts both modes.
//
// Package rabbit follows the protocol binding for AMQP: the header cloudEvents:id (or
// cloudEvents_id), or the id of a structured event, is the id of a message from another system, and
// the media type is AMQP's content type. For other transports, see [TakeID].
package cloudevents
