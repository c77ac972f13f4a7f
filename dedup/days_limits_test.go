package dedup_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// The whole inbox is locked while days are dropped, so one sweep drops 32 of them. The
// next sweep drops the others.
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
// its expired rows are deleted one by one, because others wait while rows are moved.
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

// The keys of all old parked messages are written, however many there are.
func TestSweepWritesTheKeysOfManyParkedMessages(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), byPayload)
	const rows = 1000 // two full batches
	b.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		SELECT 'payments', 't', 'p' || i, '', $2, 'quarantined', now() FROM generate_series(1, $1) AS i`,
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
