package parked_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
)

func TestLimitOfOperatorReplacesTheConfiguredOne(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		configured := store.Limit{PerSecond: 20, Burst: 5}
		b.register(store.Consumer{Consumer: "payments", Topic: "orders", Owner: "host/1", Limit: configured})
		b.known("payments", "refunds")
		limits := func() (all []parked.ConsumerLimit) {
			consumers, err := b.messages.Consumers(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range consumers {
				if c.Limit == nil {
					all = append(all, parked.ConsumerLimit{})
					continue
				}
				if (c.Limit.Actor == "") != c.Limit.Since.IsZero() || c.Limit.Used < 0 {
					t.Errorf("limit %+v", c.Limit)
				}
				all = append(all, parked.ConsumerLimit{Limit: c.Limit.Limit, Actor: c.Limit.Actor, Why: c.Limit.Why})
			}
			return all
		}
		check := func(want ...parked.ConsumerLimit) {
			t.Helper()
			if got := limits(); !slices.Equal(got, want) {
				t.Errorf("limits are %+v, want %+v", got, want)
			}
		}
		limit := func(limit parked.Limit, want ...string) {
			t.Helper()
			if topics, err := b.messages.LimitConsumer(t.Context(), ann, "payments", "", limit); err != nil || !slices.Equal(topics, want) {
				t.Errorf("changed topics %q, want %q: %v", topics, want, err)
			}
		}
		ofConfig := parked.ConsumerLimit{Limit: parked.Limit(configured)}
		check(ofConfig, parked.ConsumerLimit{})
		of := store.Instance{Consumer: "payments", Topic: "orders"}
		for range 4 {
			if _, ok, err := b.store.Starts().Take(t.Context(), of, configured, store.Limit{}, 1); err != nil || !ok {
				t.Errorf("a start is taken: %v, %v", ok, err)
			}
		}
		consumers, err := b.messages.Consumers(t.Context())
		if err != nil || consumers[0].Limit.Used == 0 {
			t.Errorf("used are %+v, %v", consumers[0].Limit, err)
		}
		limit(parked.Limit{PerSecond: 2.5}, "orders", "refunds")
		ofAnn := parked.ConsumerLimit{Limit: parked.Limit{PerSecond: 2.5, Burst: 3}, Actor: "ann", Why: "order 7 is void"}
		check(ofAnn, ofAnn)
		// An instance that does not know it yet gets no start.
		if _, ok, err := b.store.Starts().Take(t.Context(), of, configured, store.Limit{}, 1); err != nil || ok {
			t.Errorf("a start of the old limit is taken: %v, %v", ok, err)
		}
		limit(parked.Limit{}, "orders", "refunds")
		limit(parked.Limit{})
		check(ofConfig, parked.ConsumerLimit{})
		want := []string{
			"ann|consumer.limited|payments|topic:orders|2.5 per second, burst 3: order 7 is void",
			"ann|consumer.limited|payments|topic:refunds|2.5 per second, burst 3: order 7 is void",
			"ann|consumer.unlimited|payments|topic:orders|order 7 is void", "ann|consumer.unlimited|payments|topic:refunds|order 7 is void",
		}
		if got := b.audited(); !slices.Equal(got, want) {
			t.Errorf("the audit log has %q, want %q", got, want)
		}
	})
}

func TestInvalidLimitIsRefused(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		b.known("payments", "orders")
		_, err := b.messages.LimitConsumer(t.Context(), operate.Act{}, "", "", parked.Limit{PerSecond: math.NaN(), Burst: -1})
		for _, want := range []string{"Actor is empty", "Why is empty", "name of the consumer is empty", "PerSecond is NaN", "Burst is -1"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
		_, err = b.messages.LimitConsumer(t.Context(), ann, "payment", "", parked.Limit{PerSecond: 1})
		if !errors.Is(err, parked.ErrConsumerNotFound) || !strings.Contains(err.Error(), `known are "payments" of topic "orders"`) {
			t.Errorf("error %v", err)
		}
	})
}
