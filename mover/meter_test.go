package mover_test

import (
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/mover"
)

// meters records the names of the meters that are created.
type meters struct {
	noop.MeterProvider

	made []string
}

func (m *meters) Meter(name string, options ...metric.MeterOption) metric.Meter {
	m.made = append(m.made, name)
	return m.MeterProvider.Meter(name, options...)
}

func TestMovedMessagesAreCountedByConfiguredMeter(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
	withDefaults(t, db).put(t, "orders.placed", message.NewMessage("m1", nil))
	own := &meters{}
	moves(t, newMover(t, db, mover.Config{MeterProvider: own}), 1)
	if want := "github.com/watermill-once/once/outbox"; !slices.Contains(own.made, want) {
		t.Fatalf("own.made is %q, without %q", own.made, want)
	}
}
