package forwarder

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dispatch"
)

type counter int

func (c *counter) Publish(string, ...*message.Message) error { *c++; return nil }
func (c *counter) Close() error                              { return nil }

func TestNothingLeavesWithoutAGateAndALease(t *testing.T) {
	var sent counter
	s := newSender(&sent, 1)
	try := func() error {
		m := &dispatch.Message{Metadata: []byte(`{}`)}
		s.run(order{Publish: dispatch.Publish{Message: m, Ticket: 1}}, s.publish)
		results := s.results.take(nil)
		if len(results) != 1 {
			t.Fatalf("%d results, want 1: %+v", len(results), results)
		}
		return results[0].err
	}
	if err := try(); !errors.Is(err, errNotSent) {
		t.Fatalf("try: got %v, want errNotSent", err)
	}
	s.gate.Store(true)
	if err := try(); !errors.Is(err, errNotSent) {
		t.Fatalf("try: got %v, want errNotSent", err)
	}
	s.leaseUntil(time.Now().Add(time.Minute))
	if err := try(); err != nil {
		t.Fatal(err)
	}
	s.leaseUntil(time.Now())
	if err := try(); !errors.Is(err, errNotSent) {
		t.Fatalf("try: got %v, want errNotSent", err)
	}
	s.leaseUntil(time.Now().Add(time.Minute))
	s.gate.Store(false)
	if err := try(); !errors.Is(err, errNotSent) {
		t.Fatalf("try: got %v, want errNotSent", err)
	}
	if sent != 1 {
		t.Fatalf("sent is %d, want 1", sent)
	}
}
