package reconcile

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestUnusableFilesAreRefused(t *testing.T) {
	b := newBench(t, kit.SQLite(t), kit.SQLite(t))
	at := b.start.Add(time.Hour)
	b.sender.sent(topic, at, timed(at, 1))
	s, r := b.newSender(SenderConfig{}), b.newReceiver(ReceiverConfig{})
	question, err1 := s.Question(t.Context())
	answer, err2 := r.Answer(t.Context(), question)
	kit.OK(t, errors.Join(err1, err2))
	other := newBench(t, kit.SQLite(t), kit.SQLite(t))
	changed := func(file []byte, from, to string) []byte {
		if !bytes.Contains(file, []byte(from)) {
			t.Fatalf("the file has no %s: %s", from, file)
		}
		return bytes.Replace(file, []byte(from), []byte(to), 1)
	}
	read := func(s *Sender) func([]byte) error {
		return func(file []byte) error { _, err := s.Read(t.Context(), file); return err }
	}
	answered := func(file []byte) error { _, err := r.Answer(t.Context(), file); return err }
	for _, c := range []struct {
		name string
		use  func(file []byte) error
		file []byte
		says string
	}{
		{"empty", answered, nil, "end of JSON"},
		{"cut", answered, question[:len(question)/2], "check sum"},
		{"cut", read(s), answer[:50], "JSON"},
		{"changed", answered, changed(question, `"sent":{"`, `"sent":{"1`), "check sum"},
		{"changed", read(s), changed(answer, `"known":{"`, `"known":{"1`), "check sum"},
		{"of another kind", read(s), changed(question, `"question"`, `"answer"`), "check sum"},
		{"of something else", answered, []byte(`{"a": 1}`), "format"},
		{"of a later version", answered, changed(question, `"version":1`, `"version":9`), "version 9"},
		{"of an earlier version", answered, changed(question, `"version":1`, `"version":0`), "version 0"},
		{"too large", answered, make([]byte, mostBytes+1), "larger than 256 MB"},
		{"for the other side", read(s), question, "the side of the consumers answers it"},
		{"for the other side", answered, answer, "the side of the sender reads it"},
		{"of another sender", read(other.newSender(SenderConfig{})), answer, "of other tables"},
		{"of other topics", read(b.newSender(SenderConfig{Topics: []string{"other"}})), answer, `"orders.placed"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.use(c.file); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v, want ErrFile with %q", err, c.says)
			}
		})
	}
	kit.OK(t, errors.Join(answered(question), read(s)(answer)))
}

// Neither side stores anything between two steps. So a step that was repeated, or that a
// process did not finish, has no effect on the result.
func TestEachStepCanBeRepeatedByAnotherProcess(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		var ids []string
		for i := range uint64(3000) {
			ids = append(ids, timed(b.start.Add(time.Hour), i))
		}
		b.sender.sent(topic, b.start.Add(time.Hour), ids...)
		var here, want []string
		for i, id := range ids {
			if i%500 == 0 {
				want = append(want, id)
			} else {
				here = append(here, id)
			}
		}
		b.receiver.handled(billed, b.start.Add(time.Hour), here...)
		var question, answer []byte
		var reports []Report
		for range 2 {
			var err1, err2, err3 error
			question, err1 = b.newSender(SenderConfig{}).Question(b.Context())
			for range 2 {
				answer, err2 = b.newReceiver(ReceiverConfig{}).Answer(b.Context(), question)
			}
			for range 2 {
				reports, err3 = b.newSender(SenderConfig{}).Read(b.Context(), answer)
			}
			kit.OK(b, errors.Join(err1, err2, err3))
			got := missingIDs(reports[0])
			slices.Sort(got)
			slices.Sort(want)
			if len(reports) != 1 || !slices.Equal(got, want) {
				b.Fatalf("missingIDs are %q in %d reports, want %q in one", got, len(reports), want)
			}
		}
	})
}

func TestUnknownConsumersAndOtherTopicsAreRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		s := b.newSender(SenderConfig{})
		_, err := Compare(b.Context(), s, b.newReceiver(ReceiverConfig{Consumers: []string{"biling"}}))
		if !errors.Is(err, ErrConsumer) {
			b.Fatalf("got %v, want ErrConsumer", err)
		}
		if want := `"biling"`; err == nil || !strings.Contains(err.Error(), want) {
			b.Fatalf("got %v, want an error with %q", err, want)
		}

		register := `INSERT INTO once_consumers (topic, consumer, registered_at, seen_at) VALUES ($1, 'billing', $2, $3)`
		long := b.receiver.at(b.start.AddDate(0, 0, -30))
		b.receiver.exec(register, topic, long, b.receiver.at(time.Now()))
		b.receiver.exec(register, "orders.old", long, long) // the consumer has not subscribed to this topic since then
		b.compare()
		b.receiver.exec(register, "orders.paid", long, b.receiver.at(time.Now()))
		_, err = Compare(b.Context(), s, b.newReceiver(ReceiverConfig{}))
		if !errors.Is(err, ErrConsumer) {
			b.Fatalf("got %v, want ErrConsumer", err)
		}
		if want := `"orders.paid"`; err == nil || !strings.Contains(err.Error(), want) {
			b.Fatalf("got %v, want an error with %q", err, want)
		}
	})
}

// Messages that were sent before a consumer existed are not reported as missing.
func TestNothingIsMissingBeforeAConsumerWasRegistered(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		before, after := b.start.Add(time.Hour), b.start.Add(3*time.Hour)
		b.receiver.exec(`INSERT INTO once_consumers (topic, consumer, registered_at) VALUES ($1, 'billing', $2)`,
			topic, b.receiver.at(b.start.Add(2*time.Hour)))
		b.sender.sent(topic, before, timed(before, 1), "before", "again")
		b.sender.sent(topic, after, timed(after, 2), "after", "again") // the message may have been handled, and its row deleted
		check := func(r Report) {
			if got, want := missingIDs(r), []string{timed(after, 2), "after"}; !slices.Equal(got, want) {
				b.Fatalf("missingIDs(r) are %q, want %q", got, want)
			}
			if want := b.start.Add(2*time.Hour + margin); !reflect.DeepEqual(r.From, want) {
				b.Fatalf("r.From is %v, want %v", r.From, want)
			}
		}
		check(b.compare())
		question, err1 := b.newSender(SenderConfig{}).Question(b.Context()) // the sender does not know the consumer
		answer, err2 := b.newReceiver(ReceiverConfig{}).Answer(b.Context(), question)
		reports, err3 := b.newSender(SenderConfig{}).Read(b.Context(), answer)
		kit.OK(b, errors.Join(err1, err2, err3))
		check(reports[0])
	})
}

func TestAnEmptyOrYoungSentLogIsAnError(t *testing.T) {
	b := newBench(t, kit.SQLite(t), kit.SQLite(t))
	_, err := b.newSender(SenderConfig{Since: time.Now()}).Question(t.Context())
	if !errors.Is(err, ErrNothingYet) {
		t.Fatalf("got %v, want ErrNothingYet", err)
	}
	b.sender.exec(`DELETE FROM once_outbox_sent`)
	_, err = b.newSender(SenderConfig{}).Question(t.Context())
	if !errors.Is(err, ErrNoLog) {
		t.Fatalf("got %v, want ErrNoLog", err)
	}
	if err == nil || !strings.Contains(err.Error(), "KeepSent") {
		t.Fatalf(`got %v, want an error with "KeepSent"`, err)
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	b := newBench(t, kit.SQLite(t), kit.SQLite(t))
	_, err := NewSender(nil, SenderConfig{Recent: -1, LongestDelay: -1})
	for _, want := range []string{"db is nil", "Topics is empty", "Recent is -1ns", "LongestDelay is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want an error with %q", err, want)
		}
	}
	_, err = NewSender(b.sender.DB, SenderConfig{Schema: b.sender.config, Topics: []string{""}})
	if err == nil || !strings.Contains(err.Error(), "Topics has an empty name") {
		t.Fatalf(`got %v, want an error with "Topics has an empty name"`, err)
	}
	_, err = NewReceiver(nil, ReceiverConfig{InboxRetention: -1})
	for _, want := range []string{"db is nil", "Consumers is empty", "InboxRetention is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want an error with %q", err, want)
		}
	}
	_, err = NewReceiver(b.receiver.DB, ReceiverConfig{Schema: b.receiver.config, Consumers: []string{""}})
	if err == nil || !strings.Contains(err.Error(), "Consumers has an empty name") {
		t.Fatalf(`got %v, want an error with "Consumers has an empty name"`, err)
	}
}

func TestAConsumerWithBusinessKeysIsMarked(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		if b.compare().BusinessKeys {
			b.Fatal("compare().BusinessKeys is true")
		}
		b.receiver.handled(billed, b.start.Add(time.Hour), "key:order-17")
		b.sender.sent(topic, b.start.Add(time.Hour), "lost") // one missing message, so that the ids are listed
		reports, err := Compare(b.Context(), b.newSender(SenderConfig{LongestDelay: time.Minute}), b.newReceiver(ReceiverConfig{}))
		kit.OK(b, err)
		if !reports[0].BusinessKeys {
			b.Fatal("reports[0].BusinessKeys is false")
		}
		if got, want := missingIDs(reports[0]), []string{"lost"}; !slices.Equal(got, want) {
			b.Fatalf("missingIDs(reports[0]) are %q, want %q", got, want)
		}
		if len(reports[0].Phantoms) != 0 {
			b.Fatalf("reports[0].Phantoms are %+v, want none", reports[0].Phantoms)
		}
	})
}
