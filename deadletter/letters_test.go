package deadletter_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
)

func TestLetterShowsTheWholeMessage(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("bad", "key")
		m.Payload = []byte{0, 255, '\n'}
		m.Metadata["a"] = "ü"
		b.publish("topic", m, msg("free", ""))
		b.forward(&publisher{refuse: true}, 0, forwarder.BlockKey)

		listed, err := b.letters.List(b.Context(), deadletter.Filter{MessageID: "bad"})
		if err != nil {
			b.Fatal(err)
		}
		if len(listed.Letters) != 1 {
			b.Fatalf("len(listed) is %d, want 1: %+v", len(listed.Letters), listed.Letters)
		}
		if listed.Letters[0].Payload != nil {
			b.Fatalf("listed[0].Payload is %q, want nil", listed.Letters[0].Payload)
		}
		got, err := b.letters.Get(b.Context(), listed.Letters[0].ID)
		if err != nil {
			b.Fatal(err)
		}
		if time.Since(got.CreatedAt).Abs() > time.Minute {
			b.Fatalf("got.CreatedAt is %v, want %v, give or take %v", got.CreatedAt, time.Now(), time.Minute)
		}
		if time.Since(got.LastFailedAt).Abs() > time.Minute {
			b.Fatalf("got.LastFailedAt is %v, want %v, give or take %v", got.LastFailedAt, time.Now(), time.Minute)
		}
		want := deadletter.Letter{
			Message: deadletter.Message{
				ID: got.ID, Position: 1, MessageID: "bad", Topic: "topic", OrderingKey: "key", Payload: []byte{0, 255, '\n'}, Size: 3,
				Metadata: message.Metadata{"a": "ü", outbox.OrderingKey: "key"}, CreatedAt: got.CreatedAt,
			},
			Attempts: 1, Error: "too large", Reason: deadletter.ReasonUnacceptable, BlocksKey: true, LastFailedAt: got.LastFailedAt,
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}

		free, err := b.letters.List(b.Context(), deadletter.Filter{MessageID: "free"})
		if err != nil {
			b.Fatal(err)
		}
		if free.Letters[0].BlocksKey {
			b.Fatal("free[0].BlocksKey is true")
		}
		if free.Letters[0].OrderingKey != "" {
			b.Fatalf("free[0].OrderingKey is %q, want nothing", free.Letters[0].OrderingKey)
		}
	})
}

func TestGetOfAnUnknownID(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		_, err := b.letters.Get(b.Context(), 4711)
		if !errors.Is(err, deadletter.ErrNotFound) {
			b.Fatalf("got %v, want ErrNotFound", err)
		}
		if err == nil || err.Error() != "deadletter: get: dead letter 4711: not found" {
			b.Fatalf(`got %v, want "deadletter: get: dead letter 4711: not found"`, err)
		}
		want := "deadletter: sent log: get: sent message -1: not found"
		if _, err := b.log.Get(b.Context(), -1); err == nil || err.Error() != want {
			b.Fatalf("Get: got %v, want %q", err, want)
		}
	})
}

func TestGetOfAnEmptyPayload(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(message.NewMessage("empty", message.Payload{}))
		got, err := b.letters.Get(b.Context(), 1)
		if err != nil {
			b.Fatal(err)
		}
		if got.Payload == nil {
			b.Fatal("got.Payload is nil: nil would say that the payload was not read")
		}
		if len(got.Payload) != 0 {
			b.Fatalf("got.Payload is %q, want none", got.Payload)
		}
	})
}

func TestListReturnsPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(102)...)
		all, err := b.letters.List(b.Context(), deadletter.Filter{})
		if err != nil {
			b.Fatal(err)
		}
		if len(all.Letters) != 100 {
			b.Fatalf("len(all) is %d, want 100: %+v", len(all.Letters), all.Letters)
		}
		rest, err := b.letters.List(b.Context(), deadletter.Filter{AfterID: all.Letters[99].ID})
		if err != nil {
			b.Fatal(err)
		}
		if rest.Letters[0].MessageID != "100" || rest.Letters[1].MessageID != "101" {
			b.Fatalf("rest has %q and %q, want %q and %q", rest.Letters[0].MessageID, rest.Letters[1].MessageID, "100", "101")
		}
		two, err := b.letters.List(b.Context(), deadletter.Filter{Limit: 2})
		if err != nil {
			b.Fatal(err)
		}
		if len(two.Letters) != 2 {
			b.Fatalf("len(two) is %d, want 2: %+v", len(two.Letters), two.Letters)
		}
		for limit, want := range map[int]int{0: 101, 1: 1, 101: 101, 1000: 101} {
			n, err := b.letters.Count(b.Context(), deadletter.Filter{Limit: limit, AfterID: all.Letters[0].ID})
			if err != nil {
				b.Fatal(err)
			}
			if n.N != want {
				b.Errorf("with Limit %d, %d letters are counted, want %d", limit, n.N, want)
			}
		}
	})
}
