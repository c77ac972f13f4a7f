package rabbit

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
)

func TestPrefetch(t *testing.T) {
	for _, c := range []struct{ inFlight, asked, want int }{
		{1, 0, 1},
		{1, 1, 1},
		{1, 3, 3}, // the configured PrefetchCount is used
		{8, 0, 16},
		{8, 1, 16},
		{8, 2, 8},
		{8, 8, 8},
		{8, 50, 50},
		{40_000, 0, 65535},
		{65535, 1, 65535},
	} {
		if got := (SubscriberConfig{InFlight: c.inFlight}).prefetch(c.asked); got != c.want {
			t.Errorf("%d in flight, %d asked for: %d, not %d", c.inFlight, c.asked, got, c.want)
		}
	}
	for _, c := range []struct{ inFlight, gathers, want, prefetch int }{
		{0, 4000, 4000, 4000},
		{0, 100_000, 65535, 65535},
		{7, 4000, 7, 14}, // a configured InFlight is kept
	} {
		_, cfg := SubscriberConfig{InFlight: c.inFlight}.withDefaults(amqp.Config{})
		cfg = cfg.gathering(c.gathers)
		if cfg.InFlight != c.want || cfg.prefetch(0) != c.prefetch {
			t.Errorf("%d in flight for %d: %d with prefetch count %d", c.inFlight, c.gathers, cfg.InFlight, cfg.prefetch(0))
		}
	}
	if _, cfg := (SubscriberConfig{}).withDefaults(amqp.Config{}); cfg.gathering(1) != cfg || cfg.gathering(0) != cfg {
		t.Error("small batches change the number of messages in flight")
	}
	for _, c := range []struct {
		inFlight, prefetch int
		want               time.Duration
	}{{1, 1, time.Minute}, {8, 8, time.Minute}, {8, 9, 2 * time.Minute}, {8, 16, 2 * time.Minute}, {8, 17, 3 * time.Minute}} {
		if got := (SubscriberConfig{InFlight: c.inFlight, LongestUnackedWait: time.Minute}).longestUnacked(c.prefetch); got != c.want {
			t.Errorf("%d in flight of %d: %v, not %v", c.inFlight, c.prefetch, got, c.want)
		}
	}
}
