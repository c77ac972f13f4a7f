package rabbit

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/watermill-once/once/internal/testkit"
)

// The Publisher has replaced a channel. If this old channel is closed much later, the
// close must not affect the current channel.
func TestCloseOfAnOldChannelKeepsTheCurrentOne(t *testing.T) {
	t.Parallel()
	config := amqp.NewDurableQueueConfig(testkit.Rabbit(t).URL)
	p, err := NewPublisher(config, PublisherConfig{ReadyTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	current := func() *confirmChannel {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.channel
	}
	retire := func(ch *confirmChannel) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.retire(ch)
	}
	testkit.Eventually(t, time.Minute, "a channel is open", func() bool { return current() != nil })
	first := current()
	retire(first)
	testkit.Eventually(t, time.Minute, "another channel is open", func() bool { return current() != nil })
	second := current()
	if second == first {
		t.Fatal("the retired channel is the current one again")
	}
	retire(first)
	if current() != second {
		t.Error("retiring the old channel has retired the current one")
	}
}
