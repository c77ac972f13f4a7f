package reconcile

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

func TestUnusableFilesAreRefused(t *testing.T) {
	b := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	f, err := b.newSender(SenderConfig{}).Question(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var buffer bytes.Buffer
	if _, err := f.WriteTo(&buffer); err != nil {
		t.Fatal(err)
	}
	whole := buffer.String()
	for _, c := range []struct {
		name, text string
		want       error
		says       string
	}{
		{"empty", "", ErrDamaged, "end of JSON"},
		{"cut", whole[:len(whole)/2], ErrDamaged, "JSON"},
		{"changed", strings.Replace(whole, `"round":1`, `"round":2`, 1), ErrDamaged, "check sum"},
		{"of something else", `{"a": 1}`, ErrDamaged, "format"},
		{"of another version", strings.Replace(whole, `"version":1`, `"version":9`, 1), ErrVersion, "version 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadFile(strings.NewReader(c.text))
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v, want an error with %q", err, c.says)
			}
		})
	}
	if _, err := ReadFile(strings.NewReader(whole)); err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreTakenInTheirOrderAndByTheirSide(t *testing.T) {
	b := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	at := b.start.Add(time.Hour)
	b.sender.sent(topic, at, timed(at, 1))
	s, r := b.newSender(SenderConfig{}), b.newReceiver(ReceiverConfig{})
	f, err := s.Question(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.Answer(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}

	_, err = s.Read(t.Context(), f)
	if !errors.Is(err, ErrWrongStep) {
		t.Fatalf("got %v, want ErrWrongStep", err)
	}
	if want := "question 1 of the sender: the side of the consumers answers it"; err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got %v, want an error with %q", err, want)
	}
	_, err = r.Answer(t.Context(), a)
	if !errors.Is(err, ErrWrongStep) {
		t.Fatalf("got %v, want ErrWrongStep", err)
	}
	if want := "answer 1 of the consumers: the side of the sender reads it"; err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got %v, want an error with %q", err, want)
	}

	other := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	_, err = other.newSender(SenderConfig{}).Read(t.Context(), a)
	if !errors.Is(err, ErrWrongStep) {
		t.Fatalf("got %v, want ErrWrongStep", err)
	}
	if err == nil || !strings.Contains(err.Error(), "of other tables") {
		t.Fatalf(`got %v, want an error with "of other tables"`, err)
	}
	_, err = b.newSender(SenderConfig{Topics: []string{"other"}}).Read(t.Context(), a)
	if !errors.Is(err, ErrWrongStep) {
		t.Fatalf("got %v, want ErrWrongStep", err)
	}
	if want := `"orders.placed"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got %v, want an error with %q", err, want)
	}

	f.data.Round, f.data.Receiver = 2, a.data.Receiver
	_, err = other.newReceiver(ReceiverConfig{}).Answer(t.Context(), f)
	if !errors.Is(err, ErrWrongStep) {
		t.Fatalf("got %v, want ErrWrongStep", err)
	}
	if err == nil || !strings.Contains(err.Error(), "another receiver") {
		t.Fatalf(`got %v, want an error with "another receiver"`, err)
	}
	f.data.Consumers = []section{{Consumer: "mailing"}}
	_, err = r.Answer(t.Context(), f)
	if !errors.Is(err, ErrWrongStep) {
		t.Fatalf("got %v, want ErrWrongStep", err)
	}
	if err == nil || !strings.Contains(err.Error(), "mailing") {
		t.Fatalf(`got %v, want an error with "mailing"`, err)
	}
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
		receiver := func() *Receiver {
			r := b.newReceiver(ReceiverConfig{})
			r.limits.atOnce = 100 // a low limit, so that one question is not enough
			return r
		}
		next, err := b.newSender(SenderConfig{}).Question(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		var reports []Report
		questions := 0
		for ; next != nil; questions++ {
			next = copied(b, next)
			_, err := receiver().Answer(b.Context(), next) // the file of this answer is lost
			if err != nil {
				b.Fatal(err)
			}
			a, err := receiver().Answer(b.Context(), next)
			if err != nil {
				b.Fatal(err)
			}
			a = copied(b, a)
			if _, err := b.newSender(SenderConfig{}).Read(b.Context(), a); err != nil {
				b.Fatal(err)
			}
			result, err := b.newSender(SenderConfig{}).Read(b.Context(), a)
			if err != nil {
				b.Fatal(err)
			}
			reports, next = append(reports, result.Reports...), result.Question
		}
		if len(reports) != 1 {
			b.Fatalf("%d reports, want 1: %+v", len(reports), reports)
		}
		got := missingIDs(reports[0])
		slices.Sort(got)
		slices.Sort(want)
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("missingIDs are %q, want %q", got, want)
		}
		if reports[0].Questions != questions {
			b.Fatalf("reports[0].Questions is %d, want %d", reports[0].Questions, questions)
		}
		if questions <= 1 {
			b.Fatalf("questions is %d, want more than 1", questions)
		}
	})
}

func TestUnknownConsumersAndOtherTopicsAreRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		s := b.newSender(SenderConfig{})
		_, err := Compare(b.Context(), s, b.newReceiver(ReceiverConfig{Consumers: []string{"biling"}}))
		if !errors.Is(err, ErrUnknownConsumer) {
			b.Fatalf("got %v, want ErrUnknownConsumer", err)
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
		if !errors.Is(err, ErrOtherTopics) {
			b.Fatalf("got %v, want ErrOtherTopics", err)
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
		f, err := b.newSender(SenderConfig{}).Question(b.Context()) // the sender does not know the consumer
		if err != nil {
			b.Fatal(err)
		}
		a, err := b.newReceiver(ReceiverConfig{}).Answer(b.Context(), f)
		if err != nil {
			b.Fatal(err)
		}
		result, err := b.newSender(SenderConfig{}).Read(b.Context(), a)
		if err != nil {
			b.Fatal(err)
		}
		check(result.Reports[0])
	})
}

func TestAnEmptyOrYoungSentLogIsAnError(t *testing.T) {
	b := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
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
	b := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	_, err := NewSender(nil, SenderConfig{Recent: -1, Limit: -1, LongestDelay: -1})
	for _, want := range []string{"db is nil", "Topics is empty", "Recent is -1ns", "Limit is -1", "LongestDelay is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want an error with %q", err, want)
		}
	}
	_, err = NewSender(b.sender.DB, SenderConfig{Schema: b.sender.config, Topics: []string{""}})
	if err == nil || !strings.Contains(err.Error(), "Topics has an empty name") {
		t.Fatalf(`got %v, want an error with "Topics has an empty name"`, err)
	}
	_, err = NewReceiver(nil, ReceiverConfig{InboxRetention: -1, Limit: -1})
	for _, want := range []string{"db is nil", "Consumers is empty", "InboxRetention is -1ns", "Limit is -1"} {
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
		if err != nil {
			b.Fatal(err)
		}
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

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("unplugged") }

func TestAReaderThatFailsIsReported(t *testing.T) {
	if _, err := ReadFile(brokenReader{}); err == nil || !strings.Contains(err.Error(), "unplugged") {
		t.Fatalf(`ReadFile: got %v, want an error with "unplugged"`, err)
	}
}
