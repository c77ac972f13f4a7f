package dispatch

import (
	"reflect"
	"testing"
)

// When the last message of a key is confirmed and all its rows were read, the key uses
// no more memory and requests no refill.
func TestAKeyQueueEndsWithItsLastMessage(t *testing.T) {
	b := newBuffer(64)
	b.add(&Message{Position: 1, Key: "key"}, false)
	b.add(&Message{Position: 2, Key: "key"}, false)
	q := b.queues["key"]
	for range 2 {
		if !reflect.DeepEqual(b.queues["key"], q) {
			t.Fatalf(`b.queues["key"] is %+v, want %+v`, b.queues["key"], q)
		}
		m := q.head
		b.advance(q)
		b.forget(m)
		if len(b.refills) != 0 {
			t.Fatalf("b.refills are %+v, want none", b.refills)
		}
	}
	if len(b.queues) != 0 {
		t.Fatalf("b.queues are %+v, want none", b.queues)
	}
	if len(b.messages) != 0 {
		t.Fatalf("b.messages are %+v, want none", b.messages)
	}
}

// Messages of lost slots are not published, whether a sweep or a lookahead has found them.
func TestMessagesOfLostSlotsAreNotReady(t *testing.T) {
	t.Parallel()
	b := newBuffer(64)
	for position := range int64(4) {
		b.add(&Message{Position: position, Topic: "t", Slot: position % 2, ahead: position > 1}, false)
	}
	b.loseSlots(map[int64]bool{1: true})
	for _, want := range []int64{0, 2} {
		if m := b.take(func(string) bool { return true }); m == nil || m.Position != want {
			t.Errorf("took %+v, want %d", m, want)
		}
	}
	if b.ready.count != 0 || b.ahead.ready.count != 0 || len(b.messages) != 2 || b.ahead.messages != 1 || b.orphans != 0 {
		t.Errorf("%d and %d are ready, %d are in memory, %d are orphans", b.ready.count, b.ahead.ready.count, len(b.messages), b.orphans)
	}
}
