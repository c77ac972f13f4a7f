package demo

import (
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
)

// before returns a publisher that calls each before it publishes a message. If
// publisher is asynchronous, so is the result.
func before(publisher message.Publisher, each func(topic string, msg *message.Message)) message.Publisher {
	b := beforeEach{Publisher: publisher, each: each}
	if async, ok := publisher.(forwarder.AsyncPublisher); ok {
		return asyncBeforeEach{beforeEach: b, async: async}
	}
	return b
}

type beforeEach struct {
	message.Publisher

	each func(topic string, msg *message.Message)
}

func (b beforeEach) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		b.each(topic, msg)
	}
	return b.Publisher.Publish(topic, messages...)
}

type asyncBeforeEach struct {
	beforeEach

	async forwarder.AsyncPublisher
}

func (b asyncBeforeEach) PublishAsync(topic string, msg *message.Message, done func(error)) {
	b.each(topic, msg)
	b.async.PublishAsync(topic, msg, done)
}

// repeating returns a publisher that sends every fifth message twice.
func repeating(publisher message.Publisher, f *Faults) message.Publisher {
	var count atomic.Int64
	return before(publisher, func(topic string, msg *message.Message) {
		if count.Add(1)%5 != 0 {
			return
		}
		f.injected.Duplicates.Add(1)
		if async, ok := publisher.(forwarder.AsyncPublisher); ok {
			async.PublishAsync(topic, msg.Copy(), func(error) {})
			return
		}
		_ = publisher.Publish(topic, msg.Copy()) // the outcome of the copy does not matter
	})
}

// counting returns a publisher that calls then before the nth message.
func counting(publisher message.Publisher, n int, then func()) message.Publisher {
	var count atomic.Int64
	return before(publisher, func(string, *message.Message) {
		if count.Add(1) == int64(n) {
			then()
		}
	})
}
