package dedup_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// The whole inbox is locked while days are dropped, so one sweep drops at most 32 days.
// The next sweep drops the other days.
func TestSweepDropsAtMost32DaysAtOnce(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	const days = 34
	for n := range days {
		b.past(40+n, 0)
	}
	before := len(b.tables())
	for _, want := range []int{days - 32, 0} {
		b.sweep()
		if left := len(b.tables()) - before + days - 7; left != want { // it creates 7 days
			t.Errorf("%d of %d expired days are left, want %d", left, days, want)
		}
	}
}

// A day is emptied as a whole if up to 20,000 of its rows must stay. If more must stay,
// its expired rows are deleted one by one, because other transactions wait while rows
// are moved.
func TestDayIsEmptiedIfFewRowsMustStay(t *testing.T) {
	t.Parallel()
	for kept, emptied := range map[int]bool{20_000: true, 20_001: false} {
		b := newDays(t)
		const expired = 4000
		old := b.past(40, kept+expired)
		b.exec(`UPDATE once_inbox SET processed_at = now()
			WHERE message_id IN (SELECT message_id FROM `+old+` ORDER BY message_id LIMIT $1)`, kept)
		removed := b.sweep()
		if n := b.count(old); n != kept {
			t.Errorf("%d rows are left, want %d", n, kept)
		}
		if want := map[bool]int64{true: 2000, false: expired}[emptied]; removed != want {
			t.Errorf("with %d rows that stay %d are deleted one by one, want %d", kept, removed, want)
		}
	}
}

// A sweep must write the keys of all old parked messages into their rows, however many
// there are.
func TestSweepWritesTheKeysOfManyParkedMessages(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), byPayload)
	const rows = 1000 // two full batches
	// The table does not contain the rows in the order of their ids.
	b.exec(`INSERT INTO once_parked (id, consumer, topic, message_id, digest, envelope, state, due_at) OVERRIDING SYSTEM VALUE
		SELECT $1 + 1 - i, 'payments', 't', 'p' || i, '', $2, 'quarantined', now() FROM generate_series(1, $1) AS i`,
		rows, parked.Encode(message.NewMessage("p", []byte("order-17"))))
	b.ageParked()
	if _, err := b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17"))); err != nil {
		t.Fatal(err)
	}
	b.age(aYear)
	b.sweep()
	if n := b.count(`once_parked WHERE dedup_key = 'key:order-17'`); n != rows {
		t.Errorf("the keys of %d messages are written, want %d", n, rows)
	}
	if n := b.count(`once_inbox WHERE message_id = 'key:order-17'`); n != 1 {
		t.Errorf("%d keys are left, want 1", n)
	}
}

// Parked messages may be large, so one transaction must read only few of them.
// Otherwise it would need too much memory, and would hold locks for too long.
func TestSweepWritesTheKeysOfLargeMessagesInSmallTransactions(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), func(c *dedup.Config) {
		c.Consumer, c.Key = consumer, func(*message.Message) string { return "order-17" }
	})
	for i := range 3 {
		b.parkAs("quarantined", fmt.Sprint("p", i), strings.Repeat("x", 600<<10))
	}
	b.ageParked()
	if _, err := b.inbox.Middleware(apply)(message.NewMessage("A", []byte("a"))); err != nil {
		t.Fatal(err)
	}
	b.sweep()
	if n := b.count(`(SELECT DISTINCT xmin::text FROM once_parked WHERE dedup_key = 'key:order-17') AS written`); n != 3 {
		t.Errorf("the keys are written in %d transactions, want one for each message", n)
	}
}
