package rabbit_test

import (
	"crypto/tls"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

func TestNewPublisherNamesEveryInvalidField(t *testing.T) {
	config := amqp.Config{
		Connection: amqp.ConnectionConfig{
			TLSConfig:  &tls.Config{},
			AmqpConfig: &amqp091.Config{TLSClientConfig: &tls.Config{}},
			AmqpURI:    "http://localhost",
			Reconnect:  &amqp.ReconnectConfig{BackoffInitialInterval: time.Hour, BackoffMaxInterval: time.Minute},
		},
		Publish: amqp.PublishConfig{Transactional: true, Immediate: true},
	}
	cfg := rabbit.PublisherConfig{
		Window: 1 << 17, WindowBytes: -1, ConfirmTimeout: -1, ReadyTimeout: -1, DialTimeout: -1,
		WriteTimeout: -1, CloseTimeout: -1,
	}
	_, err := rabbit.NewPublisher(config, cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{
		"Connection.AmqpURI", "Connection.TLSConfig", "Exchange.GenerateName", "Publish.GenerateRoutingKey",
		"Publish.Transactional", "Publish.Immediate", "Window ", "WindowBytes", "ConfirmTimeout", "ReadyTimeout",
		"DialTimeout", "WriteTimeout", "CloseTimeout", "Connection.Reconnect.BackoffInitialInterval",
	} {
		if !strings.Contains(err.Error(), "rabbit: "+name) {
			t.Errorf("the error does not name %s:\n%v", name, err)
		}
	}

	config = amqp.NewDurableQueueConfig("")
	if _, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{}); err == nil ||
		!strings.Contains(err.Error(), "AmqpURI is empty") {
		t.Errorf("without a URI: %v", err)
	}
}

func TestTrap16_TransactionsAreRefused(t *testing.T) {
	config := amqp.NewDurableQueueConfig("amqp://localhost")
	config.Publish.Transactional = true
	if _, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{}); err == nil {
		t.Error("accepted")
	}
}

// Trap 60. Errors of the configuration contain no credentials, although the parser of
// URIs quotes the text that it cannot read.
func TestTrap60_NoCredentialsInErrorsOfTheConfiguration(t *testing.T) {
	for _, uri := range []string{
		"amqp://user:secret#1@host/vhost",
		"amqp://user:secret%zz@host/vhost",
		"amqp://user:secret @host/vhost",
		"amqp://user:secret@host:port/vhost",
		"amqp://user:secret@host/vhost?heartbeat=secret",
		"http://user:secret@host/vhost",
		"user:secret@host",
	} {
		_, err := rabbit.NewPublisher(amqp.NewDurableQueueConfig(uri), rabbit.PublisherConfig{})
		if err == nil {
			t.Errorf("%s: accepted", uri)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%v", err)
		}
	}
}

func TestTrap60_NoCredentialsWhenConnectingFails(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	withUser := strings.Replace(uri, "guest:guest@", "nobody:secret@", 1)
	h := new(heard)
	p := newPublisher(t, queueConfig(withUser), rabbit.PublisherConfig{ReadyTimeout: time.Millisecond, Logger: h})
	var err error
	eventually(t, "an error with the reason", func() bool { // the broker refuses a wrong password with a delay
		err = p.Publish("q", newMessage("m"))
		mustBe(t, "unavailable", err)
		return strings.Contains(err.Error(), "username or password not allowed")
	})
	for _, text := range append(h.all(), err.Error()) {
		if strings.Contains(text, "secret") {
			t.Error(text)
		}
	}

	config := topicConfig(uri)
	config.TopologyBuilder = &failing{} // its error contains a URL with a password
	p = newPublisher(t, config, rabbit.PublisherConfig{Logger: h})
	err = p.Publish(uniqueName("t"), newMessage("m"))
	mustBe(t, "refused", err)
	published, _ := errors.AsType[*rabbit.PublishError](err)
	for _, err := range append(published.Unwrap(), err) {
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%T: %v", err, err)
		}
	}
}

// The Publisher uses the settings of a connection and does not change them.
func TestConnectionSettingsAreUsed(t *testing.T) {
	uri := brokerURL(t)
	properties := amqp091.Table{}
	properties.SetClientConnectionName("once-test")
	config := queueConfig(uri)
	config.Connection.AmqpConfig = &amqp091.Config{Properties: properties, FrameSize: 8192}
	queue := declareQueue(t, uri, nil)
	p := newPublisher(t, config, rabbit.PublisherConfig{})

	mustBe(t, "confirmed", p.Publish(queue, newMessage("m")))
	if len(properties) != 1 {
		t.Errorf("the properties were changed: %v", properties)
	}
	large := newMessage("large")
	large.Metadata.Set("k", strings.Repeat("x", 8192))
	mustBe(t, "unacceptable", p.Publish(queue, large)) // the message exceeds the smaller frame size
}

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
			kit.Check(t, p.Close())
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
	result := kit.Go(func() error { return p.Publish("q", newMessage("m")) })
	select {
	case err := <-result:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	kit.Check(t, p.Close())
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
	kit.Check(t, p.Close())
	publish("closed")
	called.Wait()
}

func TestNotConnectedIsUnavailableInBoundedTime(t *testing.T) {
	t.Parallel()
	port := closedPort
	h := new(heard)
	p := newPublisher(t, queueConfig("amqp://someone:secret@127.0.0.1:"+port), rabbit.PublisherConfig{
		ReadyTimeout: 500 * time.Millisecond,
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
