package rabbit_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watermill-once/once/rabbit"
)

func TestCloseIsIdempotentAndRefusesLaterMessages(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{})
	var all outcomes
	for _, msg := range numbered("m", 1000) {
		all.publish(p, queue, msg)
	}

	var closers sync.WaitGroup
	for range 3 {
		closers.Go(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closers.Wait()
	for id, err := range all.wait(t) {
		if err != nil {
			t.Errorf("%s: %v: Close should have waited for it", id, err)
		}
	}

	err := p.Publish(queue, newMessage("late"))
	mustBe(t, "unavailable", err)
	if !errors.Is(err, rabbit.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestCloseEndsWaitingPublish(t *testing.T) {
	p := newPublisher(t, queueConfig("amqp://127.0.0.1:"+closedPort), rabbit.PublisherConfig{
		ReadyTimeout: time.Hour,
	})
	result := make(chan error)
	go func() { result <- p.Publish("q", newMessage("m")) }()
	select {
	case err := <-result:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, rabbit.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

// PublishAsync does not call done itself, because done may need a lock that the caller
// of PublishAsync holds.
func TestDoneIsNotCalledInsidePublishAsync(t *testing.T) {
	p := newPublisher(t, queueConfig("amqp://127.0.0.1:"+closedPort), rabbit.PublisherConfig{
		ReadyTimeout: time.Millisecond,
	})
	var mu sync.Mutex
	var called sync.WaitGroup
	publish := func(id string) {
		called.Add(1)
		mu.Lock()
		p.PublishAsync("q", newMessage(id), func(err error) {
			mu.Lock() // this deadlocks if PublishAsync itself calls done
			defer mu.Unlock()
			if got := outcomeOf(err); got != "unavailable" {
				t.Errorf("got %s (%v), want unavailable", got, err)
			}
			called.Done()
		})
		mu.Unlock()
	}
	publish("not connected")
	called.Wait()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	publish("closed")
	called.Wait()
}

func TestNotConnectedIsUnavailableInBoundedTime(t *testing.T) {
	t.Parallel()
	port := closedPort
	h := new(heard)
	p := newPublisher(t, queueConfig("amqp://someone:secret@127.0.0.1:"+port), rabbit.PublisherConfig{
		ReadyTimeout: 500 * time.Millisecond,
		ReconnectMin: time.Millisecond,
		ReconnectMax: 2 * time.Millisecond,
		Logger:       h,
	})
	eventually(t, "the first attempt has failed", func() bool { return len(h.all()) > 0 })
	began := time.Now()
	err := p.Publish("q", numbered("m", 100)...)
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("100 messages took %v: each waited for ReadyTimeout", took)
	}
	if got := outcomeOf(err); got != "unavailable" {
		t.Errorf("got %s (%v), want unavailable", got, err)
	}
	if !strings.Contains(err.Error(), "refused") {
		t.Errorf("the error does not contain the reason: %v", err)
	}
	if lines := h.all(); len(lines) != 1 {
		t.Errorf("logged %d times, want once for all attempts: %q", len(lines), lines)
	}
}

// closedPort is a port on which no process listens.
const closedPort = "1"
