package rabbit_test

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

func TestNewPublisherNamesEveryInvalidField(t *testing.T) {
	config := amqp.Config{
		Connection: amqp.ConnectionConfig{
			TLSConfig:  &tls.Config{},
			AmqpConfig: &amqp091.Config{TLSClientConfig: &tls.Config{}},
			AmqpURI:    "http://localhost",
		},
		Publish: amqp.PublishConfig{Transactional: true, Immediate: true},
	}
	cfg := rabbit.PublisherConfig{
		Window: 1 << 17, WindowBytes: -1, ConfirmTimeout: -1, ReadyTimeout: -1, DialTimeout: -1,
		WriteTimeout: -1, CloseTimeout: -1, ReconnectMin: time.Hour, ReconnectMax: time.Minute,
	}
	_, err := rabbit.NewPublisher(config, cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{
		"Connection.AmqpURI", "Connection.TLSConfig", "Exchange.GenerateName", "Publish.GenerateRoutingKey",
		"Publish.Transactional", "Publish.Immediate", "Window ", "WindowBytes", "ConfirmTimeout", "ReadyTimeout",
		"DialTimeout", "WriteTimeout", "CloseTimeout", "ReconnectMin",
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
