package meta_test

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/meta"
)

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
