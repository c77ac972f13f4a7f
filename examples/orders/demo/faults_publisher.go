package demo

import (
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
)

// withHook returns a publisher that calls the function hook before it publishes a
// message. If the given publisher is asynchronous, the result is also asynchronous.
func withHook(publisher message.Publisher, hook func(topic string, msg *message.Message)) message.Publisher {
	h := hooked{Publisher: publisher, hook: hook}
	if async, ok := publisher.(forwarder.AsyncPublisher); ok {
		return asyncHooked{hooked: h, async: async}
	}
	return h
}

type hooked struct {
	message.Publisher

	hook func(topic string, msg *message.Message)
}

func (h hooked) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		h.hook(topic, msg)
	}
	return h.Publisher.Publish(topic, messages...)
}

type asyncHooked struct {
	hooked

	async forwarder.AsyncPublisher
}

func (h asyncHooked) PublishAsync(topic string, msg *message.Message, done func(error)) {
	h.hook(topic, msg)
	h.async.PublishAsync(topic, msg, done)
}

// repeating returns a publisher that sends every fifth message twice.
func repeating(publisher message.Publisher, f *Faults) message.Publisher {
	var count atomic.Int64
	return withHook(publisher, func(topic string, msg *message.Message) {
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

// counting returns a publisher that calls the function hook before it publishes the nth
// message.
func counting(publisher message.Publisher, n int, hook func()) message.Publisher {
	var count atomic.Int64
	return withHook(publisher, func(string, *message.Message) {
		if count.Add(1) == int64(n) {
			hook()
		}
	})
}
