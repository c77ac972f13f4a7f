package retry

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
)

// A subscription without messages waits for a message, and stores nothing while it waits.
func TestIdleSubscriptionStoresNothing(t *testing.T) {
	f := fetcherOf(Config{KeyOrder: BlockWhileRetried}, 0)
	in, ended := make(chan *message.Message), make(chan struct{})
	go func() {
		defer close(ended)
		f.forward(t.Context(), in, nil)
	}()
	testkit.Eventually(t, 20*time.Second, "it waits", func() bool { return testkit.Goroutines("(*fetcher).forward(", "[select") > 0 })
	for range 100 {
		if testkit.Goroutines("(*arrivals).store") > 0 {
			t.Fatal("it stores")
		}
	}
	close(in)
	<-ended
}
