package retry

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/testkit"
)

// bufferedFetcher returns a fetcher that claims at most 12 messages and about one MiB.
func bufferedFetcher(t *testing.T, db testkit.Database) *fetcher {
	t.Helper()
	f := idleFetcher(t, db)
	f.stored.Ahead = 10
	f.buffer.limit = 1 << 20
	return f
}

func (f *fetcher) arrive(t *testing.T, tenant, id string, size int) {
	t.Helper()
	msg := message.NewMessage(id, make([]byte, size))
	msg.Metadata[meta.TenantID] = tenant
	if err := f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, msg); err != nil {
		t.Fatal(err)
	}
}

// drain fetches until the buffer is full. It resolves the claimed rows, and returns their
// ids and their total bytes.
func (f *fetcher) drain(t *testing.T) (ids string, bytes int) {
	t.Helper()
	for fetches := 0; f.fetch(t.Context()); fetches++ {
		if fetches == 100 {
			t.Fatal("the buffer does not become full")
		}
	}
	for f.queue.len() > 0 {
		c, _ := f.queue.next()
		ids += c.Message.UUID + " "
		bytes += len(c.Message.Payload)
		if err := f.store.Resolve(t.Context(), c.Claim); err != nil {
			t.Fatal(err)
		}
		f.remove(c.Claim)
	}
	return ids, bytes
}

// The bytes of claimed messages must stay within the limit, which only the last message
// may exceed. As with small messages, messages must keep their order and tenants must
// take turns.
func TestBufferBytesLimitLargeMessages(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := bufferedFetcher(t, db)
		for n := range 4 {
			for _, tenant := range []string{"a", "b", "c"} {
				f.arrive(t, tenant, fmt.Sprint(tenant, n), 400<<10)
			}
		}
		for n := range 4 {
			if ids, bytes := f.drain(t); ids != fmt.Sprintf("a%[1]d b%[1]d c%[1]d ", n) {
				t.Fatalf("%q of %d bytes are claimed at once", ids, bytes)
			}
		}
	})
}

// A message larger than the whole buffer must be claimed alone, and must not delay the
// messages after it.
func TestMessageLargerThanBufferIsClaimedAlone(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := bufferedFetcher(t, db)
		f.arrive(t, "a", "large", 3<<20)
		want := ""
		for n := range 8 {
			f.arrive(t, "a", fmt.Sprint(n), 1)
			want += fmt.Sprint(n, " ")
		}
		if ids, _ := f.drain(t); ids != "large " {
			t.Fatalf("%q are claimed, want the large message alone", ids)
		}
		got, drains := "", 0
		for ; got != want && drains < 8; drains++ {
			ids, _ := f.drain(t)
			got += ids
		}
		if got != want || drains > 2 {
			t.Fatalf("%q came after the large message, in %d steps", got, drains)
		}
		if n := f.gate.inFlight; n != 0 {
			t.Errorf("%d messages count as in flight after all have finished", n)
		}
	})
}

// The limit must also hold if large and small messages alternate.
func TestBufferBytesHoldForMixedSizes(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	const large = 500 << 10
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := bufferedFetcher(t, db)
		want, got := "", ""
		for n := range 60 {
			size := 1
			if n%12 >= 9 {
				size = large
			}
			f.arrive(t, "a", fmt.Sprint(n), size)
			want += fmt.Sprint(n, " ")
		}
		for drains := 0; got != want; drains++ {
			ids, bytes := f.drain(t)
			if bytes > f.buffer.limit+large || ids == "" || drains > 30 {
				t.Fatalf("%q of %d bytes are claimed at once, after %q, in step %d", ids, bytes, got, drains)
			}
			got += ids
		}
	})
}

// Each claim updates the estimated size of a row. After a large row, the estimate
// decreases claim by claim, so that later claims take many small rows again.
func TestClaimsUpdateTheEstimatedRowSize(t *testing.T) {
	t.Parallel()
	f := bufferedFetcher(t, testkit.SQLite(t))
	f.arrive(t, "a", "large", 400<<10)
	f.drain(t)
	large := f.buffer.rowSize
	if large < 400<<10 {
		t.Fatalf("%d bytes are expected after a row of 400 KiB", large)
	}
	f.arrive(t, "a", "small", 1)
	if f.drain(t); f.buffer.rowSize > large/2 || f.buffer.rowSize == 0 {
		t.Errorf("%d bytes are expected after a small row, before it %d", f.buffer.rowSize, large)
	}
}
