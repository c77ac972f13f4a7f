package once

import (
	"context"
	"database/sql"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// Trap 36. The inbox must remember a message until retry can no longer run it again.
func TestInboxRemembersForLongerThanRetryRetries(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", "file:unused?mode=memory")
	kit.OK(t, err)
	defer db.Close()
	long := retry.Policy{Delayed: 40, Base: 24 * time.Hour, Max: 24 * time.Hour}
	for _, config := range []retry.Config{
		{Policy: long},
		{Classes: []retry.Class{{Match: func(error) bool { return true }, Policy: long}}},
	} {
		_, err := NewConsumer(db, ConsumerConfig{Retry: config})
		if err == nil || !strings.Contains(err.Error(), "Retention") {
			t.Errorf("an inbox of 30 days with retries over 40: %v", err)
		}
		if _, err := NewConsumer(db, ConsumerConfig{
			Retry: config, Dedup: dedup.Config{Retention: 60 * 24 * time.Hour},
		}); err != nil {
			t.Error(err)
		}
	}
	_, err = NewConsumer(db, ConsumerConfig{Dedup: dedup.Config{Retention: 24 * time.Hour}})
	if err == nil || !strings.Contains(err.Error(), "MaxDuplicateAge") {
		t.Errorf("an inbox of a day: %v", err)
	}
}

// The error names the part with another Schema.
func TestPartWithAnotherSchemaIsRefused(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", "file:unused?mode=memory")
	kit.OK(t, err)
	defer db.Close()
	other := schema.Config{Prefix: "other_"}
	for field, config := range map[string]ConsumerConfig{
		"Retry.Schema":    {Retry: retry.Config{Schema: other}},
		"Dedup.Schema":    {Dedup: dedup.Config{Schema: other}},
		"Sequence.Schema": {Sequence: &sequence.Config{Schema: other}},
	} {
		_, err := NewConsumer(db, config)
		if err == nil || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "once_") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// With a nil handler every message would fail and end in quarantine. So each method
// that adds a handler must panic if the handler is nil.
func TestNilHandlerIsRefused(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", "file:unused?mode=memory")
	kit.OK(t, err)
	defer db.Close()
	consumer, err := NewConsumer(db, ConsumerConfig{})
	kit.OK(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	kit.OK(t, err)
	for what, add := range map[string]func(name string){
		"AddHandler":          func(name string) { consumer.AddHandler(router, name, "orders.placed", nil, nil) },
		"AddHandlerInBatches": func(name string) { consumer.AddHandlerInBatches(router, name, "orders.placed", nil, nil) },
		"Handle":              func(name string) { Handle[string](consumer, router, name, "orders.placed", nil, nil) },
		"Handle of an interface": func(name string) {
			Handle(consumer, router, name, "orders.placed", nil, func(context.Context, *sql.Tx, any) error { return nil })
		},
		"AddBatchHandler": func(name string) { consumer.AddBatchHandler(router, name, "orders.placed", nil, nil) },
	} {
		func() {
			defer func() {
				if said, _ := recover().(string); !strings.Contains(said, `"payments"`) {
					t.Errorf("%s says %q", what, said)
				}
			}()
			add("payments")
		}()
	}
}

// Trap 79. If the message with the next version fails, messages with higher versions
// are held for longer than retry retries it.
func TestVersionsAreHeldForLongerThanRetryRetries(t *testing.T) {
	for name, c := range map[string]struct {
		retried, least, most time.Duration
	}{
		"the default": {retry.Config{}.LongestDelay(), 15 * time.Minute, 15 * time.Minute},
		"a day":       {24 * time.Hour, 25 * time.Hour, 30 * time.Hour},
		"for ever":    {math.MaxInt64, 30 * 24 * time.Hour, 60 * 24 * time.Hour},
	} {
		got := windowFor(c.retried)
		if got < c.least || got > c.most || name != "for ever" && got <= c.retried {
			t.Errorf("%s: window is %v, retries last %v", name, got, c.retried)
		}
	}
}

// The limit is in the claims of stored messages. A consumer that stores none would ignore it.
func TestTenantConcurrencyNeedsDurableConsumer(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", "file:unused?mode=memory")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	config := ConsumerConfig{Durable: durable.Config{TenantConcurrency: 2}}
	_, err = NewConsumer(db, config)
	for _, want := range []string{"Durable.TenantConcurrency is 2", "needs a durable consumer"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	config.DurableConsumers = []string{"payments"}
	if _, err := NewConsumer(db, config); err != nil {
		t.Error(err)
	}
}
