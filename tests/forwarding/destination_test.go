package forwarding

import (
	"context"
	"fmt"
	"testing"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
)

// Trap 88. If a second forwarder publishes to another virtual host, its Run returns an
// error. All messages reach the first virtual host.
func TestSecondBrokerOnOneOutboxIsRefused(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	here, there := testkit.Rabbit(t), testkit.Rabbit(t)
	if here.URL == there.URL {
		testkit.Without(t, fmt.Errorf("there is only one virtual host"))
	}
	f := newFlow(t, testkit.Postgres(t).DB, here.URL)
	other := *f
	other.url = there.URL
	if _, err := other.admin().QueueDeclare(f.queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	f.forward(f.db, toQueues(here.URL), quick(f.log))

	publisher, err := rabbit.NewPublisher(toQueues(there.URL), impatient(f.log))
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	second, err := forwarder.New(f.db, publisher, quick(f.log))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- second.Run(context.WithoutCancel(t.Context())) }()
	defer second.Close()
	f.eventually("the second forwarder has ended, or has a part of the outbox", func() bool {
		return len(ended) > 0 || f.count(`(SELECT DISTINCT owner FROM once_slots WHERE owner IS NOT NULL) AS owners`) == 2
	})
	f.put(100)
	f.drained()
	if ids := other.arrived(f.queue); len(ids) != 0 {
		t.Errorf("%d of 100 messages went to the second broker", len(ids))
	}
	f.complete()
}
