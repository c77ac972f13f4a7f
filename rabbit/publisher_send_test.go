package rabbit

import "testing"

func TestRoomInTheWindow(t *testing.T) {
	for _, c := range []struct {
		count, bytes, size int
		want               bool
	}{
		{0, 0, 50, true},
		{1, 50, 50, true},
		{1, 50, 51, false},  // exceeds WindowBytes
		{2, 2, 1, false},    // exceeds Window
		{0, 0, 1000, true},  // exceeds WindowBytes, but is the only message
		{1, 1, 1000, false}, // exceeds WindowBytes, and is not the only message
		{1, 1000, 1, false}, // another message exceeds WindowBytes
	} {
		p := &Publisher{cfg: PublisherConfig{Window: 2, WindowBytes: 100}, count: c.count, bytes: c.bytes}
		if got := p.hasRoom(c.size); got != c.want {
			t.Errorf("%d messages of %d bytes outstanding, another of %d bytes: %v, want %v", c.count, c.bytes, c.size, got, c.want)
		}
	}
}
