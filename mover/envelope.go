package mover

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// envelope is the JSON envelope that the publisher of Watermill's own forwarder puts
// around a message.
type envelope struct {
	DestinationTopic string            `json:"destination_topic"`
	UUID             string            `json:"uuid"`
	Payload          []byte            `json:"payload"`
	Metadata         map[string]string `json:"metadata"`
}

// unwrapped contains a row, and the message from its envelope.
type unwrapped struct {
	row

	topic string
	msg   *message.Message // nil if the envelope is malformed
	err   error            // why the envelope is malformed, or nil
}

// unwrap decodes the envelope of a row. It accepts the same envelopes as Watermill's
// own forwarder.
func unwrap(r row) unwrapped {
	var e envelope
	err := json.Unmarshal(r.payload, &e)
	if err == nil && e.DestinationTopic == "" {
		err = errors.New("it has no destination topic")
	}
	if err != nil {
		return unwrapped{row: r, err: fmt.Errorf("not an envelope of Watermill's forwarder: %w", err)}
	}
	msg := message.NewMessage(e.UUID, e.Payload)
	msg.Metadata = e.Metadata
	return unwrapped{row: r, topic: e.DestinationTopic, msg: msg}
}
