package rabbit_test

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// The benchmarks publish to a quorum queue, and wait for the confirms. A message has a
// body of 490 bytes and six headers. Run one benchmark at a time, with about -benchtime
// 200000x.

func benchConfig(b *testing.B) (amqp.Config, string) {
	b.Helper()
	uri := brokerURL(b)
	queue := declareQueue(b, uri, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	return amqp.NewDurableQueueConfig(uri), queue
}

func benchMessage(i int) *message.Message {
	msg := message.NewMessage("0192a4c8-0000-7000-8000-"+fmt.Sprintf("%012d", i), bytes.Repeat([]byte("x"), 490))
	msg.Metadata = message.Metadata{
		"once_aggregate_type":    "order",
		"once_aggregate_id":      strconv.Itoa(i),
		"once_aggregate_version": "1",
		"once_event_type":        "order.placed",
		"once_tenant_id":         "tenant-1",
		"traceparent":            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	return msg
}

// rate reports the messages per second, and the processor time that this process used per
// message. If the broker runs on the same machine, compare only the processor times.
func rate(b *testing.B, before time.Duration) {
	b.StopTimer()
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/msg")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func BenchmarkPublishAsync(b *testing.B) {
	config, queue := benchConfig(b)
	config.Marshaler = rabbit.Marshaler{}
	p := newPublisher(b, config, rabbit.PublisherConfig{})
	kit.OK(b, p.Publish(queue, benchMessage(0)))
	var confirmed sync.WaitGroup
	confirmed.Add(b.N)
	b.ResetTimer()
	before := cpuTime()
	for i := range b.N {
		p.PublishAsync(queue, benchMessage(i), func(err error) {
			kit.Check(b, err)
			confirmed.Done()
		})
	}
	confirmed.Wait()
	rate(b, before)
}

func BenchmarkPublishOne(b *testing.B) {
	config, queue := benchConfig(b)
	config.Marshaler = rabbit.Marshaler{}
	p := newPublisher(b, config, rabbit.PublisherConfig{})
	kit.OK(b, p.Publish(queue, benchMessage(0)))
	b.ResetTimer()
	before := cpuTime()
	for i := range b.N {
		kit.OK(b, p.Publish(queue, benchMessage(i)))
	}
	rate(b, before)
}

// BenchmarkRaw measures amqp091 without this package. Up to 1,024 messages are
// unconfirmed at the same time, as with the default Window of a Publisher.
func BenchmarkRaw(b *testing.B) {
	config, queue := benchConfig(b)
	conn, err := amqp091.Dial(config.Connection.AmqpURI)
	kit.OK(b, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(b, err)
	kit.OK(b, channel.Confirm(false))
	marshaler := amqp.DefaultMarshaler{}
	window := make(chan *amqp091.DeferredConfirmation, 1024)
	var settled sync.WaitGroup
	settled.Go(func() {
		for confirm := range window {
			if !confirm.Wait() {
				b.Error("nack")
			}
		}
	})
	b.ResetTimer()
	before := cpuTime()
	for i := range b.N {
		publishing, err := marshaler.Marshal(benchMessage(i))
		kit.OK(b, err)
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, publishing)
		kit.OK(b, err)
		window <- confirm
	}
	close(window)
	settled.Wait()
	rate(b, before)
}

// BenchmarkStock measures watermill-amqp's publisher with confirms.
func BenchmarkStock(b *testing.B) {
	config, queue := benchConfig(b)
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 1
	p, err := amqp.NewPublisher(config, watermill.NopLogger{})
	kit.OK(b, err)
	defer p.Close()
	b.ResetTimer()
	before := cpuTime()
	for i := range b.N {
		kit.OK(b, p.Publish(queue, benchMessage(i)))
	}
	rate(b, before)
}
