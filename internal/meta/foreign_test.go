package meta_test

import (
	"maps"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/meta"
)

// A handler may copy the metadata of its message. So it must not see instructions for an
// outbox, and the outbox must not pass them on.
func TestInstructionsForAnOutboxAreForOneStep(t *testing.T) {
	all := map[string]string{
		meta.Topic: "t", meta.DueAt: "d", meta.DelayedUntil: "u", meta.DelayedFor: "f", "_watermill_other": "o", meta.TenantID: "acme",
	}
	want := map[string]string{"_watermill_other": "o", meta.TenantID: "acme"}
	for name, of := range map[string]func(map[string]string) map[string]string{
		"Received": meta.Received, "Stored": meta.Stored, "Delivered": meta.Delivered,
	} {
		if got := of(all); !maps.Equal(got, want) {
			t.Errorf("%s returns %v, want %v", name, got, want)
		}
	}
}

// A marshaler of another module leaves the header with both times in the metadata.
func TestHandlerSeesTwoTimes(t *testing.T) {
	const created, published = "2026-02-03T04:05:06.789Z", "2026-02-03T04:05:07.000Z"
	value, ok := meta.JoinTimes(map[string]string{meta.CreatedAt: created, meta.PublishedAt: published})
	if !ok {
		t.Fatal("the times cannot be joined")
	}
	want := map[string]string{meta.CreatedAt: created, meta.PublishedAt: published, "color": "red"}
	for name, of := range map[string]func(map[string]string) map[string]string{"Received": meta.Received, "Delivered": meta.Delivered} {
		metadata := map[string]string{meta.Times: value, "color": "red"}
		if got := of(metadata); !maps.Equal(got, want) {
			t.Errorf("%s returns %v, want %v", name, got, want)
		}
		if len(metadata) != 2 {
			t.Errorf("%s has changed the metadata that it was given: %v", name, metadata)
		}
	}
}

func TestStampsOfMilliseconds(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789_999_999, time.FixedZone("", 3600))
	text := meta.Stamp(at)
	if text != "2026-02-03T03:05:06.789Z" {
		t.Errorf("stamp %s", text)
	}
	if got, ok := meta.Stamped(text); !ok || !got.Equal(at.Truncate(time.Millisecond)) {
		t.Errorf("read as %v, %v", got, ok)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = meta.Stamped(text) }); n > 0 {
		t.Errorf("reading a stamp allocates %v times", n)
	}
	for _, text := range []string{
		"", "now", "2026-02-03T03:05:06Z", "2026-02-03T03:05:06.789+01:00", "1969-12-31T23:59:59.999Z",
		"0001-01-01T00:00:00.000Z", "2026-02-30T00:00:00.000Z", "2026-02-03T03:05:06.789Z ",
	} {
		if at, ok := meta.Stamped(text); ok {
			t.Errorf("%q is read as %v", text, at)
		}
	}
}
