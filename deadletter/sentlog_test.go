package deadletter_test

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
)

func TestSentLogShowsTheWholeMessage(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		m := msg("m", "key")
		m.Payload = []byte{0, 255, '\n'}
		m.Metadata["a"] = "ü"
		b.publish("topic", m, msg("free", ""))
		b.forward(&publisher{}, time.Hour, forwarder.SendSuccessors)
		if got := b.sent(); got != 2 {
			b.Fatalf("sent is %d, want 2", got)
		}

		listed := b.sentPage(deadletter.Filter{MessageID: "m"}).Messages
		if len(listed) != 1 {
			b.Fatalf("len(listed) is %d, want 1: %+v", len(listed), listed)
		}
		if listed[0].Payload != nil {
			b.Fatalf("listed[0].Payload is %q, want nil", listed[0].Payload)
		}
		got, err := b.log.Get(b.Context(), listed[0].ID)
		if err != nil {
			b.Fatal(err)
		}
		if time.Since(got.CreatedAt).Abs() > time.Minute {
			b.Fatalf("got.CreatedAt is %v, want %v, give or take %v", got.CreatedAt, time.Now(), time.Minute)
		}
		if time.Since(got.SentAt).Abs() > time.Minute {
			b.Fatalf("got.SentAt is %v, want %v, give or take %v", got.SentAt, time.Now(), time.Minute)
		}
		want := deadletter.SentMessage{
			Message: deadletter.Message{
				ID: got.ID, Position: 1, MessageID: "m", Topic: "topic", OrderingKey: "key", Payload: []byte{0, 255, '\n'}, Size: 3,
				Metadata: message.Metadata{"a": "ü", outbox.OrderingKey: "key"}, CreatedAt: got.CreatedAt,
			},
			SentAt: got.SentAt,
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}
		page := b.sentPage(deadletter.Filter{AfterID: got.ID - 1, Limit: 1})
		if page.Messages[0].ID != got.ID || page.Next != got.ID {
			b.Fatalf("the page has the ID %d and Next %d, want %d", page.Messages[0].ID, page.Next, got.ID)
		}
	})
}

func TestSentMessagesAreReplayed(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		m := described()
		m.Payload = []byte{0, 255}
		b.record("t", m, msg("other", ""))
		only := deadletter.Filter{MessageID: "described"}

		_, forgetful := b.remembering(time.Nanosecond)
		report, err := forgetful.ReplayMatching(b.Context(), ann, only, deadletter.Plan{Rate: 1000})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 1, Skipped: []int64{1}}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v: consumers do not remember it", report, want)
		}
		if err := forgetful.Replay(b.Context(), ann, 1); !errors.Is(err, deadletter.ErrNeedsForce) {
			b.Fatalf("Replay: got %v, want ErrNeedsForce", err)
		}
		if got := b.audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
		if got := b.pending(); got != 0 {
			b.Fatalf("pending is %d, want 0", got)
		}

		report, err = b.log.ReplayMatching(b.Context(), ann, only, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 1, Replayed: 1}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got := b.sent(); got != 2 {
			b.Fatalf("sent is %d, want 2: the log keeps the message", got)
		}
		if got := b.count(`SELECT COUNT(*) FROM once_outbox WHERE unknown`); got != 1 {
			b.Fatalf("count is %d, want 1: a copy may have been sent", got)
		}
		if got, want := b.audits(), []string{"ann | replay | sent:1 | described | the queue is back"}; !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
		p := &publisher{}
		b.forward(p, 0, forwarder.SendSuccessors)
		if len(p.sent) != 1 {
			b.Fatalf("len(p.sent) is %d, want 1: %+v", len(p.sent), p.sent)
		}
		if p.sent[0].UUID != "described" {
			b.Fatalf(`p.sent[0].UUID is %q, want "described"`, p.sent[0].UUID)
		}
		if want := (message.Payload{0, 255}); !bytes.Equal(p.sent[0].Payload, want) {
			b.Fatalf("p.sent[0].Payload is %q, want %q", p.sent[0].Payload, want)
		}
		if got := unstamped(p.sent[0]); !reflect.DeepEqual(got, m.Metadata) {
			b.Fatalf("unstamped(p.sent[0]) is %v, want %v", got, m.Metadata)
		}
	})
}

func TestReplayOfSentMessagesByID(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		b.record("t", msg("a", "key"), msg("b", ""))
		err := b.log.Replay(b.Context(), ann, 2, 4711)
		if !errors.Is(err, deadletter.ErrNotFound) {
			b.Fatalf("got %v, want ErrNotFound", err)
		}
		if want := "deadletter: sent log: replay: sent message 4711: not found"; err == nil || err.Error() != want {
			b.Fatalf("got %v, want %q", err, want)
		}
		if got := b.pending(); got != 0 {
			b.Fatalf("pending is %d, want 0", got)
		}
		if err := b.log.Replay(b.Context(), ann, 2, 1); err != nil {
			b.Fatal(err)
		}
		if err := b.log.Replay(b.Context(), ann, 2); err != nil {
			b.Fatalf("%v: the second time", err)
		}
		if got := b.pending(); got != 3 {
			b.Fatalf("pending is %d, want 3", got)
		}
		if got := b.audits(); len(got) != 3 {
			b.Fatalf("%d audits, want 3: %q", len(got), got)
		}
	})
}
