package observability

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

// Secrets that must not appear in logs, spans or metrics.
const (
	secretPayload  = "canary-payload"
	secretMetadata = "canary-metadata"
	secretKey      = "canary-key"
	secretPassword = "canary-password"
)

// Trap 60. Logs, metrics and traces of producers and forwarders contain no
// payload, metadata or password.
func TestForwarderRecordsNoPayloadsAndPasswords(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db, box, broker := w.database(), w.outbox(), testkit.Rabbit(t)
	config := queue(strings.Replace(broker.URL, "guest:guest@", "guest:"+secretPassword+"@", 1))
	if !strings.Contains(config.Connection.AmqpURI, secretPassword) {
		config.Connection.AmqpURI = "amqp://guest:" + secretPassword + "@127.0.0.1:1/"
	}
	locked := w.rabbit(config, rabbit.PublisherConfig{ReadyTimeout: 50 * time.Millisecond})
	good := w.rabbit(queue(broker.URL), rabbit.PublisherConfig{})

	// One message for each way in which a message can fail.
	fine, later := broker.Name("fine"), broker.Name("later")
	w.declare(broker.URL, fine, nil)
	w.declare(broker.URL, later, nil)
	var attempts atomic.Int64
	pub := &scripted{answer: func(topic string, msg *message.Message) error {
		switch {
		case strings.HasPrefix(topic, "says "):
			return outcomeError(strings.TrimPrefix(topic, "says "))
		case topic == later && attempts.Add(1) == 1:
			return locked.Publish(topic, msg)
		}
		return good.Publish(topic, msg)
	}}
	t.Cleanup(pub.running.Wait)
	w.forward(db, pub, forwarder.Config{
		MaxAttempts: 2, Backoff: func(int) time.Duration { return time.Millisecond }, StallTimeout: 500 * time.Millisecond,
	})
	ctx, service := w.traces.Tracer("service").Start(t.Context(), "service")
	secret := func(id string) *message.Message {
		msg := message.NewMessage(id, []byte(secretPayload))
		msg.Metadata.Set("customer", secretMetadata)
		outbox.SetOrderingKey(msg, secretKey+id)
		outbox.SetTenant(msg, "acme")
		outbox.SetAggregate(msg, "order", "17", 3)
		outbox.SetEventType(msg, "placed")
		return msg
	}
	for i, topic := range []string{
		later, fine, "says refused", "says unacceptable", "says unknown", broker.Name("nobody"), strings.Repeat("x", 255),
	} {
		w.publish(ctx, db, box, topic, secret(fmt.Sprint("id-", i)))
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	broken := secret("refused")
	broken.SetContext(ctx)
	broken.Metadata.Set("broken", secretMetadata+"\x00")
	if err := box.Publisher(tx).Publish("t", broken); !errors.Is(err, outbox.ErrInvalid) || strings.Contains(err.Error(), "canary") {
		t.Errorf("refused: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	w.awaitValue(4, "once.forwarder.dead_letters", "")
	w.awaitValue(1, "once.forwarder.published", "once.outcome=unavailable")
	w.awaitValue(1, "once.forwarder.published", "once.outcome=unknown")
	w.eventually("the other messages are sent", func() bool { return w.value("once.forwarder.published", "once.outcome=confirmed") >= 2 })
	service.End()

	w.tellsNoSecrets()
	dead := 0
	for _, line := range w.logs.Lines() {
		if strings.Contains(line, "Message is dead") {
			dead++
			for _, field := range []string{
				"message_uuid=", "topic=", "attempt=", "size=", "reason=",
				"tenant=acme", "aggregate_type=order", "aggregate_id=17", "version=3", "event_type=placed",
			} {
				if !strings.Contains(line, field) {
					t.Errorf("no field %s in %s", field, line)
				}
			}
		}
	}
	if dead < 4 || len(w.named("forward "+fine)) != 1 {
		t.Errorf("%d dead letters were logged, %d spans", dead, len(w.spans.GetSpans()))
	}
}

// tellsNoSecrets searches all logs, metrics and spans, and the errors that callers got, for
// secrets. It fails the test if it finds one.
func (w *watch) tellsNoSecrets(errs ...error) {
	w.Helper()
	told := w.logs.Lines()
	for name, i := range w.instruments() {
		told = append(told, fmt.Sprint(name, i.description, i.unit))
		for series := range i.series {
			told = append(told, series)
		}
	}
	for _, span := range w.spans.GetSpans() {
		told = append(told, fmt.Sprint(span.Name, span.Attributes, span.Status, span.Events, span.Links, span.Resource))
	}
	for _, err := range errs {
		if err == nil {
			w.Error("there is no error to look at")
			continue
		}
		told = append(told, fmt.Sprintf("%v %+v", err, err))
	}
	for _, line := range told {
		if strings.Contains(line, "canary-") {
			w.Errorf("a secret is in: %s", line)
		}
	}
}
