package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
	"github.com/watermill-once/once/rabbit"
)

// impatient is a configuration with short timeouts.
var impatient = rabbit.PublisherConfig{
	ConfirmTimeout: time.Second,
	ReadyTimeout:   200 * time.Millisecond,
	DialTimeout:    5 * time.Second, // the broker may be busy
	WriteTimeout:   time.Second,
	CloseTimeout:   500 * time.Millisecond,
}

func restart(t *testing.T, broker *servers.Rabbit) {
	t.Helper()
	kit.OK(t, broker.Restart(t.Context()))
}

// write makes the broker store its definitions on disk, so that a queue still exists
// after the broker was killed.
func write(t *testing.T, broker *servers.Rabbit) {
	t.Helper()
	kit.OK(t, broker.WriteDefinitions(t.Context()))
}

// connected waits until a message is confirmed. With short timeouts, the first attempts
// may fail, because there is no connection yet, or the confirm is late.
func connected(t *testing.T, p *rabbit.Publisher, queue string) {
	t.Helper()
	eventually(t, "a message gets through", func() bool { return p.Publish(queue, newMessage("first")) == nil })
}

func alarm(t *testing.T, set func(context.Context) error) {
	t.Helper()
	kit.OK(t, set(t.Context()))
}

// eval evaluates an Erlang expression in the broker.
func eval(t *testing.T, broker *servers.Rabbit, expression string) {
	t.Helper()
	kit.OK(t, kit.Err(broker.Eval(t.Context(), expression)))
}

func TestTrap09_BrokerIsKilledDuringABatch(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	queue := declareQueue(t, broker.URL("/"), nil)
	cfg := impatient
	cfg.ConfirmTimeout = time.Minute    // longer than sending 500 messages
	cfg.ReadyTimeout = 10 * time.Minute // longer than a restart of the broker
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)
	connected(t, p, queue)
	write(t, broker)

	var all outcomes
	for i := range 20_000 {
		all.publish(p, queue, newMessage(fmt.Sprint("m", i)))
		switch i {
		case 10_000:
			all.wait(t)
			broker.Freeze() // the next 500 messages are sent, but not confirmed
		case 10_500:
			broker.Kill()
			restart(t, broker)
		}
	}
	outcome := all.wait(t)
	stored := drain(t, broker.URL("/"), queue)
	count := make(map[string]int)
	for id, err := range outcome {
		got := outcomeOf(err)
		count[got]++
		if got == "confirmed" && stored[id] == 0 {
			t.Errorf("%s was confirmed and is not in the queue", id)
		}
		if got != "confirmed" && got != "unknown" {
			t.Errorf("%s is %s (%v)", id, got, err)
		}
	}
	if count["unknown"] < 500 || count["confirmed"] < 15_000 {
		t.Errorf("outcomes: %v; the broker was killed with 500 outstanding messages, and restarted", count)
	}
}

func TestTrap13_FrozenBrokerIsUnknownAtTheDeadline(t *testing.T) {
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	queue := declareQueue(t, broker.URL("/"), nil)
	h := new(heard)
	cfg := impatient
	cfg.Logger = h
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)
	connected(t, p, queue)

	broker.Freeze()
	began := time.Now()
	err := p.Publish(queue, numbered("frozen", 100)...)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v with a deadline of 1 s", took)
	}
	if got := outcomeOf(err); got != "unknown" || !errors.Is(err, rabbit.ErrUnknown) {
		t.Errorf("got %s (%v), want unknown", got, err)
	}
	mustBe(t, "unavailable", p.Publish(queue, newMessage("still frozen")))

	broker.Thaw()
	eventually(t, "published again", func() bool { return p.Publish(queue, newMessage("thawed")) == nil })

	broker.Freeze()
	defer broker.Thaw()
	began = time.Now()
	kit.Check(t, p.Close())
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Close took %v", took)
	}
	for _, line := range h.all() {
		if strings.Contains(line, "guest:guest") {
			t.Error(line)
		}
	}
}

func TestCloseReportsOutstandingMessagesAsUnknown(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	queue := declareQueue(t, broker.URL("/"), nil)
	cfg := impatient
	cfg.Window = 10
	cfg.ConfirmTimeout = time.Hour
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)
	connected(t, p, queue)

	broker.Freeze()
	defer broker.Thaw()
	var all outcomes
	for _, msg := range numbered("m", 10) {
		all.publish(p, queue, msg)
	}
	result := kit.Go(func() error { return p.Publish(queue, newMessage("no room")) })
	err := p.Close()
	if err := <-result; !errors.Is(err, rabbit.ErrClosed) {
		t.Errorf("the 11th: %v, want ErrClosed", err)
	}
	if !errors.Is(err, rabbit.ErrUnknown) || !strings.Contains(err.Error(), "10 messages") {
		t.Errorf("Close: %v, want 10 unknown", err)
	}
	if len(all.errs) != 10 {
		t.Errorf("%d of 10 were reported when Close returned", len(all.errs))
	}
	for _, err := range all.wait(t) {
		mustBe(t, "unknown", err)
	}
}

// limitMessages makes the broker refuse messages of more than 1,000 bytes until the
// function end is called. The broker reads this setting when a channel is opened.
func limitMessages(t *testing.T, broker *servers.Rabbit) (end func()) {
	t.Helper()
	before, err := broker.LimitMessages(t.Context(), 1000)
	kit.OK(t, err)
	return func() {
		kit.Check(t, kit.Err(broker.LimitMessages(t.Context(), before)))
	}
}

func TestTrap11_BodyOverTheLimitOfTheBroker(t *testing.T) {
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	queue := declareQueue(t, broker.URL("/"), nil)
	defer limitMessages(t, broker)()
	cfg := impatient
	// The timeouts are long, so that only the close of the channel can cause the errors.
	cfg.ReadyTimeout, cfg.ConfirmTimeout = time.Minute, time.Minute
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)

	tooLarge := newMessage("large")
	tooLarge.Payload = make([]byte, 2000)
	var all outcomes
	for _, msg := range numbered("before", 20) {
		all.publish(p, queue, msg)
	}
	all.publish(p, queue, tooLarge)
	for _, msg := range numbered("after", 20) {
		all.publish(p, queue, msg)
	}
	unknown := 0
	for id, err := range all.wait(t) {
		switch outcomeOf(err) {
		case "unknown":
			unknown++
		case "confirmed":
		default:
			t.Errorf("%s: %v; the close must not be attributed to one of several messages", id, err)
		}
	}
	if unknown < 2 || outcomeOf(all.errs["large"]) != "unknown" {
		t.Errorf("%d unknown; the outcome of the large one is %v", unknown, all.errs["large"])
	}

	for id, err := range all.errs {
		if err == nil {
			continue
		}
		msg, want := newMessage(id), "confirmed"
		if id == "large" {
			msg, want = tooLarge, "unacceptable"
		}
		err := p.Publish(queue, msg)
		mustBe(t, want, err)
		if id == "large" {
			mustHaveCode(t, 406, err)
		}
	}
}

// Trap 67. The broker can close a channel because of an overdue message. This must not
// affect a message that was sent after the overdue message.
func TestTrap67_OverdueMessageDoesNotAffectOthers(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	queue := declareQueue(t, broker.URL("/"), nil)
	defer limitMessages(t, broker)()
	cfg := impatient
	cfg.ConfirmTimeout = 3 * time.Second // long enough for a broker that was frozen
	cfg.DialTimeout = time.Minute
	cfg.ReadyTimeout = time.Minute
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)
	connected(t, p, queue)

	tooLarge := newMessage("large")
	tooLarge.Payload = make([]byte, 2000)
	broker.Freeze()
	began := time.Now()
	mustBe(t, "unknown", p.Publish(queue, tooLarge))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v with a deadline of 3 s", took)
	}
	result := kit.Go(func() error { return p.Publish(queue, newMessage("other")) })
	select {
	case err := <-result:
		t.Errorf("got an outcome from a frozen broker: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	broker.Thaw()
	mustBe(t, "confirmed", <-result)
}

func TestTrap12_MemoryAlarm(t *testing.T) {
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	queue := declareQueue(t, broker.URL("/"), nil)
	h := new(heard)
	cfg := impatient
	cfg.Logger = h
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)
	connected(t, p, queue)
	alarm(t, broker.RaiseMemoryAlarm)

	began := time.Now()
	big := numbered("alarm", 2000)
	for _, msg := range big {
		msg.Payload = make([]byte, 10_000) // larger than the buffers of the network
	}
	err := p.Publish(queue, big...)
	if got := outcomeOf(err); err == nil || got == "refused" || got == "unacceptable" {
		t.Errorf("got %s (%v)", got, err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("Publish took %v", took)
	}
	eventually(t, "blocked", func() bool {
		err := p.Publish(queue, newMessage("blocked"))
		return outcomeOf(err) == "unavailable" && strings.Contains(err.Error(), "blocked by the broker")
	})

	alarm(t, broker.ClearMemoryAlarm)
	eventually(t, "recovered", func() bool { return p.Publish(queue, newMessage("after")) == nil })
}

func TestTrap75_CloseUnderAMemoryAlarm(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	queue := declareQueue(t, broker.URL("/"), nil)
	cfg := impatient
	cfg.ConfirmTimeout = time.Hour
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)
	connected(t, p, queue)
	alarm(t, broker.RaiseMemoryAlarm)
	defer alarm(t, broker.ClearMemoryAlarm)

	var all outcomes
	for range 1000 {
		msg := newMessage(uniqueName("m"))
		msg.Payload = make([]byte, 10_000)
		all.publish(p, queue, msg)
	}
	began := time.Now()
	_ = p.Close()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Close took %v", took)
	}
	for id, err := range all.wait(t) {
		if got := outcomeOf(err); got != "unknown" && got != "unavailable" {
			t.Errorf("%s is %s (%v)", id, got, err)
		}
	}
}
