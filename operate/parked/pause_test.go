package parked_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/audit"
	"github.com/watermill-once/once/operate/parked"
)

// known registers a consumer for a topic.
func (b *bench) known(consumer, topic string) {
	b.Helper()
	b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1"})
}

// audited returns the acts of the audit log, with the oldest act first.
func (b *bench) audited() (all []string) {
	b.Helper()
	log, err := audit.New(b.DB, b.Config)
	kit.OK(b, err)
	page, err := log.List(b.Context(), audit.Filter{})
	kit.OK(b, err)
	for _, r := range slices.Backward(page.Rows) {
		all = append(all, strings.Join([]string{r.Actor, r.Action, r.Consumer, r.Subject, r.Why}, "|"))
	}
	return all
}

func TestConsumerIsPausedForAllItsTopicsOrOne(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		b.known("payments", "orders")
		b.known("payments", "refunds")
		b.known("mails", "orders")
		paused := func() (all []string) {
			consumers, err := b.messages.Consumers(t.Context())
			kit.OK(t, err)
			for _, c := range consumers {
				if c.Pause != nil {
					if c.Pause.Actor != "ann" || c.Pause.Why != "order 7 is void" || c.Pause.Since.IsZero() {
						t.Errorf("pause %+v", c.Pause)
					}
					all = append(all, c.Name+" "+c.Topic)
				}
			}
			return all
		}
		change := func(want []string, call func() ([]string, error)) {
			t.Helper()
			topics, err := call()
			if err != nil || !slices.Equal(topics, want) {
				t.Errorf("changed topics %q, want %q: %v", topics, want, err)
			}
		}
		pause := func(topic string) func() ([]string, error) {
			return func() ([]string, error) { return b.messages.PauseConsumer(t.Context(), ann, "payments", topic) }
		}
		resume := func(topic string) func() ([]string, error) {
			return func() ([]string, error) { return b.messages.ResumeConsumer(t.Context(), ann, "payments", topic) }
		}
		change([]string{"refunds"}, pause("refunds"))
		change([]string{"orders"}, pause("")) // refunds keeps its pause
		change(nil, pause(""))
		if got := paused(); !slices.Equal(got, []string{"payments orders", "payments refunds"}) {
			t.Errorf("paused are %q", got)
		}
		change([]string{"orders"}, resume("orders"))
		change([]string{"refunds"}, resume(""))
		if got := paused(); got != nil {
			t.Errorf("paused are %q", got)
		}
		_, err := b.messages.ResumeConsumer(t.Context(), ann, "payments", "")
		if !errors.Is(err, parked.ErrNotPaused) || !strings.Contains(err.Error(), `"payments"`) {
			t.Errorf("resume of a consumer that is not paused: %v", err)
		}
		want := []string{
			"ann|consumer.paused|payments|topic:refunds|order 7 is void", "ann|consumer.paused|payments|topic:orders|order 7 is void",
			"ann|consumer.resumed|payments|topic:orders|order 7 is void", "ann|consumer.resumed|payments|topic:refunds|order 7 is void",
		}
		if got := b.audited(); !slices.Equal(got, want) {
			t.Errorf("the audit log has %q, want %q", got, want)
		}
	})
}

// A mistyped name would pause nothing. The error names the consumers that exist.
func TestPauseOfUnknownConsumerListsTheKnownOnes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		_, err := b.messages.PauseConsumer(t.Context(), ann, "payment", "")
		if !errors.Is(err, parked.ErrConsumerNotFound) || !strings.Contains(err.Error(), `no such consumer: "payment"; known are none`) {
			t.Errorf("error %v", err)
		}
		b.known("payments", "orders")
		b.seed() // the consumer "payments" has messages of another topic
		for _, name := range [][2]string{{"payment", ""}, {"payments", "order"}} {
			_, err = b.messages.PauseConsumer(t.Context(), ann, name[0], name[1])
			const known = `known are "payments" of topic "orders", "payments" of topic "orders.placed"`
			if !errors.Is(err, parked.ErrConsumerNotFound) || !strings.Contains(err.Error(), known) {
				t.Errorf("error %v, want %q in it", err, known)
			}
		}
		if topics, err := b.messages.PauseConsumer(t.Context(), ann, "payments", topic); err != nil || !slices.Equal(topics, []string{topic}) {
			t.Errorf("a consumer that only has messages: %q, %v", topics, err)
		}
		b.WantNumber(1, `SELECT COUNT(*) FROM once_consumer_pauses`)
	})
}

// A list of consumers has at most 1,000 that are registered. The others can be paused, too.
func TestPauseOfOneAmongManyConsumers(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		b.Exec(`WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000)
			INSERT INTO once_consumers (topic, consumer) SELECT 'a', 'c' || n FROM numbers`)
		b.known("payments", "orders")
		b.known("payments", "refunds")
		for _, c := range []struct {
			topic string
			want  []string
		}{{"refunds", []string{"refunds"}}, {"", []string{"orders"}}} { // the other one is paused already
			if topics, err := b.messages.PauseConsumer(t.Context(), ann, "payments", c.topic); err != nil || !slices.Equal(topics, c.want) {
				t.Errorf("topic %q: paused %q, %v", c.topic, topics, err)
			}
		}
		_, err := b.messages.PauseConsumer(t.Context(), ann, "pay\xff\x00ments", "")
		if !errors.Is(err, parked.ErrConsumerNotFound) || !strings.Contains(err.Error(), "and 982 more") {
			t.Errorf("error %v", err)
		}
	})
}

func TestPauseNeedsActorAndReason(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		_, err := b.messages.PauseConsumer(t.Context(), operate.Act{}, "", "")
		for _, want := range []string{"Actor is empty", "Why is empty", "the name of the consumer is empty"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
	})
}

// A consumer that was removed and returns later must not be paused for a forgotten reason.
func TestRemovedConsumerIsNotPaused(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		b.known("payments", "orders")
		kit.OK(t, kit.Err(b.messages.PauseConsumer(t.Context(), ann, "payments", "")))
		kit.OK(t, b.messages.RemoveConsumer(t.Context(), ann, "payments", "orders", parked.RemoveOptions{Force: true}))
		b.WantNumber(0, `SELECT COUNT(*) FROM once_consumer_pauses`)
	})
}

// An operator can hold the breaker of a consumer open, and close it.
func TestPauseReplacesOpenBreaker(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		b.known("payments", "orders")
		open := func() {
			b.Exec(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why, probe_at, probes, prober, fingerprint)
				SELECT topic, consumer, 'breaker', '5 of 5', registered_at, 3, 'host/1', 'ab' FROM once_consumers`)
		}
		open()
		if c := b.consumers()[0]; c.Pause == nil || c.Pause.Actor != "breaker" || !c.Pause.Breaker {
			t.Errorf("consumer %+v, want a pause of the breaker", c)
		}
		if topics, err := b.messages.PauseConsumer(t.Context(), ann, "payments", ""); err != nil || len(topics) != 1 {
			t.Errorf("paused %q: %v", topics, err)
		}
		if n := b.Number(`SELECT COUNT(*) FROM once_consumer_pauses WHERE actor = 'ann' AND probe_at IS NULL AND probes = 0`); n != 1 {
			t.Error("the row is still that of the breaker")
		}
		if c := b.consumers()[0]; c.Pause == nil || c.Pause.Breaker {
			t.Errorf("consumer %+v, want a pause of ann", c)
		}
		if topics, err := b.messages.PauseConsumer(t.Context(), ann, "payments", ""); err != nil || len(topics) != 0 {
			t.Errorf("paused %q again: %v", topics, err)
		}
		for range 2 {
			if topics, err := b.messages.ResumeConsumer(t.Context(), ann, "payments", ""); err != nil || len(topics) != 1 {
				t.Errorf("resumed %q: %v", topics, err)
			}
			open()
		}
	})
}
