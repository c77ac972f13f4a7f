package rabbit

import (
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	const low, high = 100 * time.Millisecond, time.Second
	for failed, want := range []time.Duration{
		0, low, 2 * low, 4 * low, 8 * low, high, high,
	} {
		if got := backoff(failed, low, high); got != want {
			t.Errorf("backoff(%d) = %v, want %v", failed, got, want)
		}
	}
	if got := backoff(1<<30, low, high); got != high {
		t.Errorf("after very many: %v", got)
	}
	if got := backoff(1, high, high); got != high {
		t.Errorf("low equal to high: %v", got)
	}
	for range 1000 {
		if got := jitter(high); got < high/2 || got > high {
			t.Fatalf("jitter(%v) = %v", high, got)
		}
	}
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"dial tcp 127.0.0.1:5672: connection refused":   "dial tcp 127.0.0.1:5672: connection refused",
		"see amqp://user:secret@host:5672/vhost now":    "see amqp://***@host:5672/vhost now",
		`parse "amqp://u:se/cr@et@host/": bad`:          `parse "amqp://***@host/": bad`,
		"amqps://user@host and amqp://a:b@other failed": "amqps://***@host and amqp://***@other failed",
	} {
		if got := redactText(text); got != want {
			t.Errorf("redactText(%q) = %q, want %q", text, got, want)
		}
	}

	harmless := errors.New("harmless")
	if !errors.Is(redact(harmless), harmless) || redact(nil) != nil {
		t.Error("an error without credentials has to stay what it is")
	}
	secret := &url.Error{Op: "parse", URL: "amqp://user:secret@host:port", Err: harmless}
	redacted := redact(fmt.Errorf("connect: %w", secret))
	if inner, ok := errors.AsType[*url.Error](redacted); ok {
		t.Errorf("the credentials are still inside: %v", inner)
	}
}

func TestRoomInTheWindow(t *testing.T) {
	for _, c := range []struct {
		count, bytes, size int
		want               bool
	}{
		{0, 0, 50, true},
		{1, 50, 50, true},
		{1, 50, 51, false},  // over the bytes
		{2, 2, 1, false},    // over the count
		{0, 0, 1000, true},  // too large for the window, so alone
		{1, 1, 1000, false}, // not alone
		{1, 1000, 1, false}, // beside one that has to be alone
	} {
		p := &Publisher{cfg: PublisherConfig{Window: 2, WindowBytes: 100}, count: c.count, bytes: c.bytes}
		if got := p.room(c.size); got != c.want {
			t.Errorf("%d messages of %d bytes outstanding, %d more: %v, want %v", c.count, c.bytes, c.size, got, c.want)
		}
	}
}

func TestPrefetch(t *testing.T) {
	for _, c := range []struct{ inFlight, asked, want int }{
		{1, 0, 1},
		{1, 1, 1},
		{1, 3, 3}, // in the order of the queue, unless told otherwise
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
	for _, c := range []struct {
		inFlight, prefetch int
		want               time.Duration
	}{{1, 1, time.Minute}, {8, 8, time.Minute}, {8, 9, 2 * time.Minute}, {8, 16, 2 * time.Minute}, {8, 17, 3 * time.Minute}} {
		if got := (SubscriberConfig{InFlight: c.inFlight, LongestUnackedWait: time.Minute}).longestStay(c.prefetch); got != c.want {
			t.Errorf("%d in flight of %d: %v, not %v", c.inFlight, c.prefetch, got, c.want)
		}
	}
}
