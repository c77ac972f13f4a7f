package observability

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
)

// moveRabbit publishes every kind of message to a working broker.
func moveRabbit(w *watch, seen *seen) {
	broker := testkit.Rabbit(w.T)
	full, roomy := broker.Name("full"), broker.Name("roomy")
	w.declare(broker.URL, full, amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	w.declare(broker.URL, roomy, nil)
	config := queue(broker.URL)
	config.Marshaler = odd{}
	p := w.rabbit(config, rabbit.PublisherConfig{})
	w.zero("once.rabbit.")
	w.awaitValue(1, "once.rabbit.connected", "")

	for _, c := range []struct {
		topic, id string
		want      error
	}{
		{roomy, "1", nil},
		{full, "2", nil},
		{full, "3", rabbit.ErrNacked},
		{broker.Name("nobody"), "4", rabbit.ErrReturned},
		{roomy, "fail", rabbit.ErrRefused},
		{roomy, "invalid", rabbit.ErrInvalid},
		{strings.Repeat("x", 256), "5", rabbit.ErrTooLarge},
	} {
		if err := p.Publish(c.topic, message.NewMessage(c.id, nil)); !errors.Is(err, c.want) {
			w.Errorf("message %s: %v, want %v", c.id, err, c.want)
		}
	}
	seen.look(w)
	if err := p.Close(); err != nil {
		w.Error(err)
	}
	if err := p.Publish(roomy, message.NewMessage("6", nil)); !errors.Is(err, rabbit.ErrClosed) {
		w.Errorf("a closed publisher: %v", err)
	}
	if got := w.value("once.rabbit.connected", ""); got != -1 {
		w.Errorf("a closed publisher is still observed: %v", got)
	}
	seen.look(w)
	for outcome, want := range map[string]float64{
		"confirmed": 2, "nacked": 1, "returned": 1, "refused": 1, "invalid": 1, "too_large": 1, "closed": 1,
	} {
		if got := w.value("once.rabbit.published", "once.outcome="+outcome); got != want {
			w.Errorf("%v %s, want %v", got, outcome, want)
		}
	}
	if got := w.value("once.rabbit.confirm.duration", ""); got != 2 {
		w.Errorf("%v durations of 2 confirms", got)
	}
}

// odd is a marshaler. Messages with certain ids cannot be marshaled, or cannot be sent afterwards.
type odd struct{ rabbit.Marshaler }

func (o odd) Marshal(msg *message.Message) (amqp.Publishing, error) {
	publishing, err := o.Marshaler.Marshal(msg)
	switch msg.UUID {
	case "fail":
		err = errors.New("cannot be marshaled")
	case "invalid":
		publishing.Headers["a header"] = struct{}{}
	}
	return publishing, err
}

// troubleRabbit freezes, blocks and kills the broker.
func troubleRabbit(w *watch, seen *seen) {
	broker := testkit.PrivateRabbit(w.T)
	w.declare(broker.URL("/"), "q", nil)
	p := w.rabbit(queue(broker.URL("/")), rabbit.PublisherConfig{
		ConfirmTimeout: 5 * time.Second, ReadyTimeout: 100 * time.Millisecond, ReconnectMax: 200 * time.Millisecond,
	})
	w.awaitValue(1, "once.rabbit.connected", "")
	w.awaitValue(0, "once.rabbit.blocked", "")
	publish := func(id string) error { return p.Publish("q", message.NewMessage(id, nil)) }

	broker.Freeze()
	unknown := make(chan error, 1)
	go func() { unknown <- publish("1") }()
	w.awaitValue(1, "once.rabbit.in_flight", "")
	seen.look(w)
	if err := <-unknown; !errors.Is(err, rabbit.ErrUnknown) {
		w.Errorf("a frozen broker: %v", err)
	}
	broker.Thaw()

	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	if err := broker.RaiseMemoryAlarm(ctx); err != nil {
		w.Fatal(err)
	}
	number := 1
	w.eventually("publishing is blocked", func() bool {
		number++
		return errors.Is(publish(strconv.Itoa(number)), rabbit.ErrUnavailable) && w.value("once.rabbit.blocked", "") == 1
	})
	seen.look(w)
	broker.Kill()
	w.awaitValue(1, "once.rabbit.connects", "once.outcome=failed")
	if got := w.value("once.rabbit.connected", ""); got != 0 {
		w.Errorf("connected is %v without a broker", got)
	}
	seen.look(w)
}
