package main

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/outbox"
)

const recorderQueue = ledger + "_recorder"

// recorder records the messages that the broker has accepted for the topic ledger. They
// arrive in the recorder's own queue, in the order in which the broker accepted them. The
// messages of a key have numbers without gaps. So if no message overtook another one, the
// first delivery of each message has the next number of its key.
type recorder struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu         sync.Mutex
	last       map[string]int64 // highest number of each key
	missing    map[string]bool  // messages that others have overtaken and that have not come yet: key and number
	seen       int64
	copies     int64
	inversions []string
}

// startRecorder starts a recorder that connects to the first of the nodes that works.
func startRecorder(urls ...string) *recorder {
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{cancel: cancel, last: make(map[string]int64), missing: make(map[string]bool)}
	r.ended.Go(func() {
		for ctx.Err() == nil {
			for _, url := range urls {
				_ = r.record(ctx, url) // ends with an error when the broker goes down, and is repeated
				rest(ctx, 100*time.Millisecond)
			}
		}
	})
	return r
}

func (r *recorder) stop() {
	r.cancel()
	r.ended.Wait()
}

func (r *recorder) record(ctx context.Context, url string) error {
	conn, err := amqp.DialConfig(url, amqp.Config{Heartbeat: 3 * time.Second, Locale: "en_US"})
	if err != nil {
		return err
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	// The prefetch is small, so that messages stay in this queue. It then also gets full
	// when the fault queue-full limits its length.
	if err := channel.Qos(30, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, recorderQueue, "", false, true, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil
			}
			key, _ := d.Headers[outbox.OrderingKey].(string)
			number, _ := d.Headers[headerNumber].(string)
			r.note(d.MessageId, key, number)
			if len(deliveries) == 0 {
				if err := channel.Ack(d.DeliveryTag, true); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// note records a delivery. numbered is the number of the message within its
// key.
func (r *recorder) note(id, key, numbered string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen++
	number, err := strconv.ParseInt(numbered, 10, 64)
	if key == "" || err != nil {
		return
	}
	last := r.last[key]
	switch {
	case number <= last:
		r.copies++
		delete(r.missing, key+" "+numbered)
	case number > last+1:
		for n := last + 1; n < number; n++ {
			r.missing[key+" "+strconv.FormatInt(n, 10)] = true
		}
		r.inversions = append(r.inversions, id+" is number "+numbered+" of "+key+" and came after "+strconv.FormatInt(last, 10))
		r.last[key] = number
	default:
		r.last[key] = number
	}
}

// found returns three results: descriptions of the messages that overtook other messages
// of their key, the number of deliveries, and the number of copies of messages with a
// key.
func (r *recorder) found() (inversions []string, seen, copies int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inversions, r.seen, r.copies
}

// absent returns the messages that have never come although later ones of their key have: key and number.
func (r *recorder) absent() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.missing))
}

func (r *recorder) highest(key string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[key]
}
