package observability

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// withPassword returns the URL of the broker for a new user with a password,
// and a function that removes the user.
func withPassword(t *testing.T, broker kit.Broker) (_ string, remove func()) {
	t.Helper()
	user := broker.Name("reader")
	remove = broker.AddUser(t, user, secretPassword)
	broker.Permit(t, user, ".*", ".*", ".*")
	address, err := url.Parse(broker.URL)
	kit.OK(t, err)
	address.User = url.UserPassword(user, secretPassword)
	return address.String(), remove
}

// brokenPipe is a writer that always fails.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// Trap 60. No outcome of a consumer, and no operation of an operator, records a secret in logs,
// metrics or spans.
func TestConsumersRecordNoSecrets(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db, broker := w.database(), kit.Rabbit(t)
	address, remove := withPassword(t, broker)
	defer remove()
	topic := broker.Name("events")
	w.declare(broker.URL, topic, nil)
	config := queue(address)
	config.Marshaler = odd{}
	send := w.rabbit(queue(address), rabbit.PublisherConfig{})

	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		DurableConsumers: []string{"durable"},
		Retry: retry.Config{
			Policy:       retry.Policy{Immediate: 1, Delayed: 1, Base: 10 * time.Millisecond},
			PollInterval: 10 * time.Millisecond, KeyOrder: retry.BlockWhileQuarantined,
		},
		Poison:        poison.Config{OnQuarantine: func(poison.Entry) { panic("the hook fails") }},
		MeterProvider: w.meters, TracerProvider: w.traces, Logger: &w.logs,
	})
	kit.OK(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, &w.logs)
	kit.OK(t, err)
	var mended atomic.Bool
	handle := func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		switch kind, _, _ := strings.Cut(msg.UUID, " "); {
		case mended.Load(), kind == "fine":
			return nil, nil
		case kind == "panics":
			panic("the handler panics")
		case kind == "permanent":
			return nil, retry.Permanent(errHandler)
		case kind == "sql":
			_, err := tx.ExecContext(ctx, `INSERT INTO nowhere VALUES ($1)`, msg.Payload)
			return nil, err
		case kind == "produces": // a message that the outbox refuses
			msg.Metadata.Set("broken", secretMetadata+"\x00")
			return []*message.Message{once.To("t", msg)}, nil
		}
		return nil, errHandler
	}
	consumer.AddHandler(router, "plain", topic, w.subscriber(config, rabbit.SubscriberConfig{}), handle)
	durable := &byHand{kit.NewSubscriber()}
	consumer.AddHandler(router, "durable", "t", durable, handle)
	ended := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
	<-router.Running()
	t.Cleanup(func() {
		kit.Check(t, errors.Join(router.Close(), <-ended))
	})

	secret := func(id, payload string) *message.Message {
		msg := message.NewMessage(id, []byte(secretPayload+payload))
		msg.Metadata.Set("customer", secretMetadata)
		return msg
	}
	keyed := func(id string) *message.Message {
		msg := secret(id, "")
		outbox.SetOrderingKey(msg, secretKey)
		return msg
	}
	for _, msg := range []func() *message.Message{
		func() *message.Message { return secret("fine", "") },
		func() *message.Message { return secret("fine", "") },
		func() *message.Message { return secret("fine", " another") }, // a collision
		func() *message.Message { return secret("fails", "") },
		func() *message.Message { return secret("panics", "") },
		func() *message.Message { return secret("sql", "") },
		func() *message.Message { return secret("produces", "") },
		func() *message.Message { return secret("undecodable", "") },
		func() *message.Message { return secret("", "") },
		func() *message.Message { return keyed("permanent key") },
		func() *message.Message { return keyed("fine key") },
	} {
		kit.OK(t, send.Publish(topic, msg()))
		durable.deliver(msg())
	}
	quarantined := func(n int) func() bool {
		return func() bool {
			var is int
			err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_parked WHERE state = 'quarantined'`).Scan(&is)
			return err == nil && is == n
		}
	}
	w.eventually("all hopeless messages are in quarantine", quarantined(2*8))
	w.tellsNoSecrets()

	errs := operateBadly(w, consumer.Quarantine())
	mended.Store(true)
	ann := operate.Act{Actor: "ann", Why: "mended"}
	kit.OK(t, kit.Err(consumer.Quarantine().ReplayMatching(t.Context(), ann, operate.Filter{All: true}, operate.Plan{})))
	w.eventually("only messages that cannot be handled are left", quarantined(5)) // two collisions, two without an id, one undecodable

	// The database and the connection to the broker fail while the consumer runs.
	w.exec(db, `ALTER TABLE once_parked RENAME TO elsewhere`)
	broker.CloseConnections(t, "a test")
	go durable.deliver(secret("waits", ""))
	kit.Eventually(t, 30*time.Second, "both failures are logged", func() bool {
		text := strings.Join(w.logs.Lines(), "\n")
		return strings.Contains(text, "once_parked") && strings.Count(text, "RabbitMQ connection established") >= 3
	})
	w.exec(db, `ALTER TABLE elsewhere RENAME TO once_parked`)
	w.tellsNoSecrets(errs...)
	for _, said := range []string{
		"Message is quarantined", "OnQuarantine panicked", "panic: the handler panics", "Message cannot be decoded", "stack",
	} {
		if !strings.Contains(strings.Join(w.logs.Lines(), "\n"), said) {
			t.Errorf("nothing was logged with %q", said)
		}
	}
}

// operateBadly makes the mistakes that an operator can make, and returns the errors.
func operateBadly(w *watch, entries *quarantine.Entries) (errs []error) {
	w.Helper()
	ctx, ann := w.Context(), operate.Act{Actor: "ann", Why: "a test"}
	page, err := entries.List(ctx, operate.Filter{})
	kit.OK(w, err)
	_, err = entries.Export(ctx, operate.Filter{}, brokenPipe{})
	errs = append(errs, err)
	var file strings.Builder
	if _, err := entries.Export(ctx, operate.Filter{}, &file); err != nil || !strings.Contains(file.String(), secretMetadata) {
		w.Errorf("%v: %s", err, file.String())
	}
	line, _, _ := strings.Cut(file.String(), "\n")
	for _, broken := range []string{
		line[:len(line)/2],
		strings.Replace(line, `"metadata":{`, `"metadata":{"canary-metadata":1,`, 1),
		strings.Replace(line, `"envelope":"`, `"envelope":"canary payload `, 1),
		strings.Replace(line, `"digest":"`, `"digest":"00`, 1),
		`{"canary-payload"`,
	} {
		_, _, err := entries.Import(ctx, ann, strings.NewReader(broken))
		errs = append(errs, err)
	}
	for _, e := range page.Rows {
		if e.Reason == poison.ReasonUndecodable {
			errs = append(errs, entries.Replay(ctx, ann, e.ID))
		}
	}
	_, err = entries.Edit(ctx, ann, page.Rows[0].ID, func(msg *message.Message) error {
		msg.UUID = "fine"
		return nil
	}, quarantine.EditOptions{})
	return append(errs, err)
}
