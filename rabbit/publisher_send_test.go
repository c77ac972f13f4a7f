package rabbit

import "testing"

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
		if got := p.hasRoom(c.size); got != c.want {
			t.Errorf("%d messages of %d bytes outstanding, %d more: %v, want %v", c.count, c.bytes, c.size, got, c.want)
		}
	}
}
