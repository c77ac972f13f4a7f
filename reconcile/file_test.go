package reconcile

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
)

func TestUnusableFilesAreRefused(t *testing.T) {
	b := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	f, err := b.newSender(SenderConfig{}).Question(t.Context())
	require.NoError(t, err)
	var buffer bytes.Buffer
	_, err = f.WriteTo(&buffer)
	require.NoError(t, err)
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
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err = ReadFile(strings.NewReader(whole))
	require.NoError(t, err)
}

func TestFilesAreTakenInTheirOrderAndByTheirSide(t *testing.T) {
	b := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	at := b.start.Add(time.Hour)
	b.sender.sent(topic, at, timed(at, 1))
	s, r := b.newSender(SenderConfig{}), b.newReceiver(ReceiverConfig{})
	f, err := s.Question(t.Context())
	require.NoError(t, err)
	a, err := r.Answer(t.Context(), f)
	require.NoError(t, err)

	_, err = s.Read(t.Context(), f)
	require.ErrorIs(t, err, ErrWrongStep)
	require.ErrorContains(t, err, "question 1 of the sender: the side of the consumers answers it")
	_, err = r.Answer(t.Context(), a)
	require.ErrorIs(t, err, ErrWrongStep)
	require.ErrorContains(t, err, "answer 1 of the consumers: the side of the sender reads it")

	other := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	_, err = other.newSender(SenderConfig{}).Read(t.Context(), a)
	require.ErrorIs(t, err, ErrWrongStep)
	require.ErrorContains(t, err, "of other tables")
	_, err = b.newSender(SenderConfig{Topics: []string{"other"}}).Read(t.Context(), a)
	require.ErrorIs(t, err, ErrWrongStep)
	require.ErrorContains(t, err, `"orders.placed"`)

	f.data.Round, f.data.Receiver = 2, a.data.Receiver
	_, err = other.newReceiver(ReceiverConfig{}).Answer(t.Context(), f)
	require.ErrorIs(t, err, ErrWrongStep)
	require.ErrorContains(t, err, "another receiver")
	f.data.Consumers = []section{{Consumer: "mailing"}}
	_, err = r.Answer(t.Context(), f)
	require.ErrorIs(t, err, ErrWrongStep)
	require.ErrorContains(t, err, "mailing")
}

// Neither side remembers anything between two steps: a step that was repeated, or
// that a process did not finish, has no effect on the result.
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
			r.limits.atOnce = 100 // so that one question is not enough
			return r
		}
		next, err := b.newSender(SenderConfig{}).Question(b.Context())
		require.NoError(b, err)
		var reports []Report
		questions := 0
		for ; next != nil; questions++ {
			next = copied(b, next)
			_, err := receiver().Answer(b.Context(), next) // its file is lost
			require.NoError(b, err)
			a, err := receiver().Answer(b.Context(), next)
			require.NoError(b, err)
			a = copied(b, a)
			_, err = b.newSender(SenderConfig{}).Read(b.Context(), a)
			require.NoError(b, err)
			result, err := b.newSender(SenderConfig{}).Read(b.Context(), a)
			require.NoError(b, err)
			reports, next = append(reports, result.Reports...), result.Question
		}
		require.Len(b, reports, 1)
		require.ElementsMatch(b, want, missingIDs(reports[0]))
		require.Equal(b, questions, reports[0].Questions)
		require.Greater(b, questions, 1)
	})
}

func TestUnknownConsumersAndOtherTopicsAreRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		s := b.newSender(SenderConfig{})
		_, err := Compare(b.Context(), s, b.newReceiver(ReceiverConfig{Consumers: []string{"biling"}}))
		require.ErrorIs(b, err, ErrUnknownConsumer)
		require.ErrorContains(b, err, `"biling"`)

		register := `INSERT INTO once_consumers (topic, consumer, registered_at, seen_at) VALUES ($1, 'billing', $2, $3)`
		long := b.receiver.at(b.start.AddDate(0, 0, -30))
		b.receiver.exec(register, topic, long, b.receiver.at(time.Now()))
		b.receiver.exec(register, "orders.old", long, long) // not seen since
		b.compare()
		b.receiver.exec(register, "orders.paid", long, b.receiver.at(time.Now()))
		_, err = Compare(b.Context(), s, b.newReceiver(ReceiverConfig{}))
		require.ErrorIs(b, err, ErrOtherTopics)
		require.ErrorContains(b, err, `"orders.paid"`)
	})
}

// A consumer does not miss what was sent before it existed.
func TestNothingIsMissingBeforeAConsumerWasRegistered(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		before, after := b.start.Add(time.Hour), b.start.Add(3*time.Hour)
		b.receiver.exec(`INSERT INTO once_consumers (topic, consumer, registered_at) VALUES ($1, 'billing', $2)`,
			topic, b.receiver.at(b.start.Add(2*time.Hour)))
		b.sender.sent(topic, before, timed(before, 1), "before", "again")
		b.sender.sent(topic, after, timed(after, 2), "after", "again") // may have been handled, and forgotten
		check := func(r Report) {
			require.Equal(b, []string{timed(after, 2), "after"}, missingIDs(r))
			require.Equal(b, b.start.Add(2*time.Hour+margin), r.From)
		}
		check(b.compare())
		f, err := b.newSender(SenderConfig{}).Question(b.Context()) // does not know the consumer
		require.NoError(b, err)
		a, err := b.newReceiver(ReceiverConfig{}).Answer(b.Context(), f)
		require.NoError(b, err)
		result, err := b.newSender(SenderConfig{}).Read(b.Context(), a)
		require.NoError(b, err)
		check(result.Reports[0])
	})
}

func TestAnEmptyOrYoungSentLogIsAnError(t *testing.T) {
	b := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	_, err := b.newSender(SenderConfig{Since: time.Now()}).Question(t.Context())
	require.ErrorIs(t, err, ErrNothingYet)
	b.sender.exec(`DELETE FROM once_outbox_sent`)
	_, err = b.newSender(SenderConfig{}).Question(t.Context())
	require.ErrorIs(t, err, ErrNoLog)
	require.ErrorContains(t, err, "KeepSent")
}

func TestConfigErrorsNameTheField(t *testing.T) {
	b := newBench(t, testkit.SQLite(t), testkit.SQLite(t))
	_, err := NewSender(nil, SenderConfig{Recent: -1, Limit: -1, LongestDelay: -1})
	for _, want := range []string{"db is nil", "Topics is empty", "Recent is -1ns", "Limit is -1", "LongestDelay is -1ns"} {
		require.ErrorContains(t, err, want)
	}
	_, err = NewSender(b.sender.DB, SenderConfig{Schema: b.sender.config, Topics: []string{""}})
	require.ErrorContains(t, err, "Topics has an empty name")
	_, err = NewReceiver(nil, ReceiverConfig{InboxRetention: -1, Limit: -1})
	for _, want := range []string{"db is nil", "Consumers is empty", "InboxRetention is -1ns", "Limit is -1"} {
		require.ErrorContains(t, err, want)
	}
	_, err = NewReceiver(b.receiver.DB, ReceiverConfig{Schema: b.receiver.config, Consumers: []string{""}})
	require.ErrorContains(t, err, "Consumers has an empty name")
}

func TestAConsumerWithBusinessKeysIsMarked(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		require.False(b, b.compare().BusinessKeys)
		b.receiver.handled(billed, b.start.Add(time.Hour), "key:order-17")
		b.sender.sent(topic, b.start.Add(time.Hour), "lost") // so that the ids are listed
		reports, err := Compare(b.Context(), b.newSender(SenderConfig{LongestDelay: time.Minute}), b.newReceiver(ReceiverConfig{}))
		require.NoError(b, err)
		require.True(b, reports[0].BusinessKeys)
		require.Equal(b, []string{"lost"}, missingIDs(reports[0]))
		require.Empty(b, reports[0].Phantoms)
	})
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("unplugged") }

func TestAReaderThatFailsIsReported(t *testing.T) {
	_, err := ReadFile(brokenReader{})
	require.ErrorContains(t, err, "unplugged")
}
