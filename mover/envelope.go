package mover

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// envelope is what the stock publisher puts a message into, as JSON.
type envelope struct {
	DestinationTopic string            `json:"destination_topic"`
	UUID             string            `json:"uuid"`
	Payload          []byte            `json:"payload"`
	Metadata         map[string]string `json:"metadata"`
}

// unwrapped is a row and the message in it.
type unwrapped struct {
	row

	topic string
	msg   *message.Message // nil if it is malformed
	err   error            // why
}

// unwrap accepts what the stock forwarder accepts.
func unwrap(r row) unwrapped {
	var e envelope
	err := json.Unmarshal(r.payload, &e)
	if err == nil && e.DestinationTopic == "" {
		err = errors.New("it has no destination topic")
	}
	if err != nil {
		return unwrapped{row: r, err: fmt.Errorf("no envelope of Watermill's forwarder: %w", err)}
	}
	msg := message.NewMessage(e.UUID, e.Payload)
	msg.Metadata = e.Metadata
	return unwrapped{row: r, topic: e.DestinationTopic, msg: msg}
}
