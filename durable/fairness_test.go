package durable_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/testkit"
)

func ofTenant(tenant string, count int) []*message.Message {
	var ids []string
	for n := range count {
		ids = append(ids, fmt.Sprintf("%s-%d", tenant, n))
	}
	msgs := messages(ids...)
	for _, msg := range msgs {
		msg.Metadata.Set(meta.TenantID, tenant)
	}
	return msgs
}

func not(f func(string) bool) func(string) bool { return func(s string) bool { return !f(s) } }

func (b *bench) handledSoFar() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.handled)
}

// One tenant has thousands of waiting messages, and some of them are claimed. The
// messages of a small tenant arrive last. They must still be handled soon.
func TestTenantWithFewMessagesIsServedSoon(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		for range 5 {
			many := ofTenant("many", 1000)
			for n, msg := range many {
				msg.UUID = fmt.Sprintf("%s-%p-%d", "many", &many, n)
			}
			if err := b.parked.Deliver(t.Context(), topic, []string{consumer}, many...); err != nil {
				t.Fatal(err)
			}
		}
		b.run(durable.Config{}, fine)
		b.eventually("some are handled", func() bool { return len(b.handledSoFar()) > 0 })
		few := ofTenant("few", 10)
		b.send(few...)
		b.acked(few...)
		stored := len(b.handledSoFar())
		isFew := func(id string) bool { return strings.HasPrefix(id, "few") }
		var all []string
		b.eventually("the messages of the small tenant are handled", func() bool {
			all = b.handledSoFar()
			return len(slices.DeleteFunc(slices.Clone(all), not(isFew))) == len(few)
		})
		last := len(all) - 1
		for !isFew(all[last]) {
			last--
		}
		// At most 65 messages of the large tenant were claimed before that.
		if between := last - stored; between > 150 {
			t.Errorf("%d messages were handled before the last message of the small tenant", between)
		}
		if err := b.router.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
