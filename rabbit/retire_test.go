package rabbit

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/watermill-once/once/internal/testkit"
)

// A channel that was given up can be closed long after that. The Publisher goes
// on with the channel that it has by then.
func TestACloseOfAnOldChannelLeavesTheCurrentOne(t *testing.T) {
	config := amqp.NewDurableQueueConfig(testkit.Rabbit(t).URL)
	p, err := NewPublisher(config, PublisherConfig{ReadyTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	current := func() *lane {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.lane
	}
	retire := func(l *lane) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.retire(l)
	}
	testkit.Eventually(t, time.Minute, "there is a channel", func() bool { return current() != nil })
	first := current()
	retire(first)
	testkit.Eventually(t, time.Minute, "there is another one", func() bool { return current() != nil })
	second := current()
	if second == first {
		t.Fatal("it goes on with the channel that was given up")
	}
	retire(first)
	if current() != second {
		t.Error("the current channel is given up because of the old one")
	}
}
