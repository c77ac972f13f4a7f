package sequence

import (
	"errors"
	"math"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
)

// A version is either parsed exactly or refused. The method Config.place must then
// classify the version correctly, relative to the last applied version.
func FuzzVersion(f *testing.F) {
	f.Add("order", "1", "7", 1, int64(6))
	f.Add("order", "1", "9223372036854775807", 2, int64(math.MaxInt64))
	f.Add("order", "\x00", "-1", 0, int64(0))
	f.Add("", "", "1e3", 1, int64(0))
	f.Add("a", "b", "+0007", 2, int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, kind, id, version string, first int, known int64) {
		c := Config{Policy: HoldForGap, First: First(uint(first) % 2)}
		msg := message.NewMessage("id", nil)
		msg.Metadata = message.Metadata{meta.AggregateType: kind, meta.AggregateID: id, meta.AggregateVersion: version}
		a, ok, err := c.aggregateOf(msg)
		if err != nil && (ok || !errors.Is(err, ErrInvalidVersion)) {
			t.Fatalf("%v, %v", ok, err)
		}
		if !ok {
			return
		}
		if n, err := strconv.ParseInt(version, 10, 64); err != nil || n != a.version || n < c.first() {
			t.Errorf("%q is read as %d", version, a.version)
		}
		switch place := c.place(last{version: known, completeFrom: min(known, 1), known: true}, a.version); {
		case a.version <= known && a.version >= min(known, 1) && place != stale:
			t.Errorf("%d after %d is %d, not stale", a.version, known, place)
		case a.version < min(known, 1) && place != late:
			t.Errorf("%d after %d is %d, not late", a.version, known, place)
		case a.version > known && place == stale:
			t.Errorf("%d after %d is stale", a.version, known)
		case place == next && a.version-1 != known:
			t.Errorf("%d after %d is next", a.version, known)
		}
	})
}
