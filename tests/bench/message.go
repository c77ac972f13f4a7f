package main

import (
	"bytes"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
)

// Every message has a body of bodySize bytes, and headerCount metadata fields.
const (
	bodySize    = 490
	headerCount = 6
)

var body = append(append([]byte(`{"text":"`), bytes.Repeat([]byte("x"), bodySize-11)...), `"}`...)

func newMessage() *message.Message {
	msg := message.NewMessage(uuid.Must(uuid.NewV7()).String(), body)
	for n := range headerCount {
		msg.Metadata[fmt.Sprintf("header-%d", n)] = "a value of some length"
	}
	return msg
}

func newMessages(count int) []*message.Message {
	msgs := make([]*message.Message, count)
	for i := range msgs {
		msgs[i] = newMessage()
	}
	return msgs
}
