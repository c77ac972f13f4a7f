package dispatch

import (
	"reflect"
	"testing"
)

// When the last message of a key is confirmed and all its rows were read, the key uses
// no more memory and wants no refill.
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
