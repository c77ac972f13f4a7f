package reconcile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestMissingAndNeverSentMessagesAreFoundAcrossDatabases(t *testing.T) {
	eachDatabase(t, findAll)
}

func findAll(b *bench) {
	var missing, phantoms []string
	at := func(i uint64) time.Time { return b.start.Add(5*time.Minute + time.Duration(i)*13*time.Second) }
	for i := range uint64(600) {
		id := timed(at(i), i)
		switch i % 3 {
		case 1:
			id = untimed(i)
		case 2:
			id = fmt.Sprint("order-", i)
		}
		if i%150 < 3 {
			phantoms = append(phantoms, id)
		} else {
			b.sender.sent(topic, at(i), id)
		}
		if i%150 > 146 {
			missing = append(missing, id)
		} else {
			b.receiver.handled(billed, at(i).Add(time.Second), id)
		}
	}
	b.sender.sent("other.topic", at(1), "of another topic")
	b.receiver.handled("mailing", at(1), "of another consumer")
	// Untimed phantoms may be messages whose rows were deleted from the log, see below.
	reports, err := Compare(b.Context(), b.newSender(SenderConfig{LongestDelay: time.Minute}), b.newReceiver(ReceiverConfig{}))
	kit.OK(b, err)
	r := reports[0]
	got := phantomIDs(r)
	slices.Sort(got)
	slices.Sort(phantoms)
	if got := missingIDs(r); !reflect.DeepEqual(got, missing) {
		b.Fatalf("missingIDs(r) are %q, want %q", got, missing)
	}
	if !reflect.DeepEqual(got, phantoms) {
		b.Fatalf("got %q, want %q", got, phantoms)
	}
	if !r.Found() {
		b.Fatal("r.Found returned false")
	}
	if r.Consumer != billed {
		b.Fatalf("r.Consumer is %q, want %q", r.Consumer, billed)
	}
	if r.MissingSince.Sub(at(147)).Abs() > time.Millisecond {
		b.Fatalf("r.MissingSince is %v, want %v, give or take %v", r.MissingSince, at(147), time.Millisecond)
	}
	if r.Missing[0].SentLogID == 0 {
		b.Fatal("r.Missing[0].SentLogID is 0")
	}
	if r.Missing[0].Topic != topic {
		b.Fatalf("r.Missing[0].Topic is %q, want %q", r.Missing[0].Topic, topic)
	}
	if r.Phantoms[0].State != "handled" {
		b.Fatalf(`r.Phantoms[0].State is %q, want "handled"`, r.Phantoms[0].State)
	}
	if r.Sent != 588 {
		b.Fatalf("r.Sent is %d, want 588", r.Sent)
	}
	if r.Known != 588 {
		b.Fatalf("r.Known is %d, want 588", r.Known)
	}
}

func TestParkedMessagesAreNotMissing(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		at := b.start.Add(time.Hour)
		for i, state := range []string{"waiting", "held", "quarantined", "resolved", "discarded"} {
			if state == "held" {
				continue // a held message needs an ordering key, and counts as waiting
			}
			id := timed(at, uint64(i))
			b.sender.sent(topic, at, id)
			b.receiver.parked(state, at.Add(time.Minute), id)
		}
		both := timed(at, 77) // handled, and replayed later
		b.sender.sent(topic, at, both)
		b.receiver.handled(billed, at, both)
		b.receiver.parked("waiting", at.Add(time.Minute), both)
		b.receiver.parked("quarantined", at.Add(time.Minute), "") // undecodable, without an id
		r := b.compare()
		if len(r.Missing) != 0 {
			b.Fatalf("r.Missing is %+v, want none", r.Missing)
		}
		if len(r.Phantoms) != 0 {
			b.Fatalf("r.Phantoms are %+v, want none", r.Phantoms)
		}
		if r.Found() {
			b.Fatal("r.Found returned true")
		}
		if r.Sent != 5 || r.Known != 5 {
			b.Fatalf("%d sent, %d known, want 5 of each", r.Sent, r.Known)
		}
		if want := []Hour{{Start: at.Truncate(time.Hour), Sent: 5, Known: 5}}; !slices.Equal(r.Hours, want) {
			b.Fatalf("the hours are %+v, want %+v", r.Hours, want)
		}
		got := ""
		for _, p := range r.Parked {
			got += fmt.Sprint(p.N, " ", p.State, " ")
		}
		if want := "2 waiting 2 quarantined 1 discarded "; got != want {
			b.Fatalf("r.Parked is %s, want %s", got, want)
		}
		if r.Parked[1].Oldest.Sub(at.Add(time.Minute)).Abs() > time.Second {
			b.Fatalf("r.Parked[1].Oldest is %v, want %v, give or take %v", r.Parked[1].Oldest, at.Add(time.Minute), time.Second)
		}
	})
}

// A message that a sender published more than once is compared once.
func TestCopiesOfSentMessagesCountOnce(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		at := b.start.Add(time.Hour)
		var all []string
		for i := range uint64(50) {
			all = append(all, timed(at, i))
		}
		b.sender.sent(topic, at, all...)
		b.sender.sent(topic, at.Add(time.Hour), all...)
		b.receiver.handled(billed, at, all[1:]...)
		later := timed(at.Add(90*time.Minute), 51) // first sent after all others, but its row has a lower ID than the copies
		b.sender.exec(`UPDATE once_outbox_sent SET message_id = $1, sent_at = $2 WHERE id = 3`, later, b.sender.at(at.Add(90*time.Minute)))
		r := b.compare()
		if got := missingIDs(r); !slices.Equal(got, []string{all[0], later}) {
			b.Fatalf("missingIDs(r) are %q, want %q", got, []string{all[0], later})
		}
		if r.Sent != 51 {
			b.Fatalf("r.Sent is %d, want 51", r.Sent)
		}
		m := r.Missing[0]
		if m.SentAt.Sub(at).Abs() > time.Second || m.LastSentAt.Sub(at.Add(time.Hour)).Abs() > time.Second ||
			m.SentLogID != 52 || m.Topic != topic {
			b.Fatalf("got %+v, want it sent at %v and an hour later, with the ID 52", m, at)
		}
	})
}

// The time in an id comes from the clock of the sender, and the time of a row from the
// clock of a database. If the second one is slow, the id still takes part.
func TestRowsOfASlowClockTakePart(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		since := b.start.Add(2 * time.Hour)
		id, row := timed(since.Add(time.Minute), 1), since.Add(-50*time.Minute)
		b.sender.sent(topic, row, id)
		b.receiver.handled(billed, row, id)
		reports, err := Compare(b.Context(), b.newSender(SenderConfig{Since: since}), b.newReceiver(ReceiverConfig{}))
		kit.OK(b, err)
		if r := reports[0]; r.Sent != 1 || r.Known != 1 || r.Found() {
			b.Fatalf("%d sent, %d known, %d missing, %d phantoms, want only 1 sent and 1 known", r.Sent, r.Known, len(r.Missing), len(r.Phantoms))
		}
	})
}

func TestRecentMessagesAreLeftOut(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		now := time.Now()
		b.sender.sent(topic, now.Add(-30*time.Minute), timed(now.Add(-30*time.Minute), 1), "recent")
		b.receiver.handled(billed, now.Add(-20*time.Minute), timed(now.Add(-20*time.Minute), 2), "recent too")
		old := timed(now.Add(-3*time.Hour), 3)
		b.sender.sent(topic, now.Add(-3*time.Hour), old)
		b.sender.sent(topic, now.Add(-time.Minute), old)
		r := b.compare()
		if r.Found() {
			b.Fatalf("r.Found returned true: %+v", r)
		}
		if r.SentRecently != 1 {
			b.Fatalf("r.SentRecently is %d, want 1", r.SentRecently)
		}
	})
}

// If retention has deleted rows on one side, their messages are not reported, although
// the other side still has them.
func TestDeletedRowsAreNeverReported(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		days := func(n int) time.Time { return b.start.AddDate(0, 0, -n) }
		b.receiver.handled(billed, days(3), timed(days(3), 1), "old without a time", "key:order-1")
		r := b.compare() // the oldest row of the sent log is five hours old
		if r.Found() {
			b.Fatalf("r.Found returned true: %+v", r)
		}
		if want := b.start.Add(margin); !reflect.DeepEqual(r.From, want) {
			b.Fatalf("r.From is %v, want %v", r.From, want)
		}

		b.sender.exec(`DELETE FROM once_outbox_sent`)
		b.sender.sent(topic, days(9), timed(days(9), 2), "sent long ago")
		b.sender.sent(topic, days(5), timed(days(5), 2), "forgotten by the inbox")
		b.sender.sent(topic, days(2), timed(days(2), 3), "lost")
		b.sender.sent(topic, b.start, "first")
		b.receiver.exec(`DELETE FROM once_inbox WHERE message_id = 'old without a time' OR message_id LIKE '%-7001-%'`)
		b.receiver.handled(billed, days(3), timed(days(3), 9))
		b.sender.sent(topic, days(3), timed(days(3), 9))
		for _, state := range []string{"waiting", "quarantined"} { // the inbox keeps the rows of such messages longer than others
			b.receiver.handled(billed, days(6), state)
			b.receiver.parked(state, days(6), state)
		}
		r = b.compare() // the oldest row of the inbox is three days old
		if got, want := missingIDs(r), []string{timed(days(2), 3), "lost"}; !slices.Equal(got, want) {
			b.Fatalf("missingIDs(r) are %q, want %q", got, want)
		}
		if len(r.Phantoms) != 0 {
			b.Fatalf("r.Phantoms are %+v, want none", r.Phantoms)
		}
		if want := days(3).Add(margin); !reflect.DeepEqual(r.From, want) {
			b.Fatalf("r.From is %v, want %v", r.From, want)
		}
	})
}

// A message whose id has no time may have been sent before the oldest row of the sent
// log. So it is reported as a phantom only if it was handled more than LongestDelay
// after the time of that row.
func TestPhantomsWithoutATimeMustBeOlderThanTheLongestDelay(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.receiver.handled(billed, b.start.Add(2*time.Hour), "who sent it")
		reports, err := Compare(b.Context(), b.newSender(SenderConfig{LongestDelay: 3 * time.Hour}), b.newReceiver(ReceiverConfig{}))
		kit.OK(b, err)
		if len(reports[0].Phantoms) != 0 {
			b.Fatalf("reports[0].Phantoms are %+v, want none", reports[0].Phantoms)
		}
		reports, err = Compare(b.Context(), b.newSender(SenderConfig{LongestDelay: time.Hour}), b.newReceiver(ReceiverConfig{}))
		kit.OK(b, err)
		if got, want := phantomIDs(reports[0]), []string{"who sent it"}; !slices.Equal(got, want) {
			b.Fatalf("phantomIDs(reports[0]) are %q, want %q", got, want)
		}
	})
}

// Retention may delete rows of the sent log between the question and its answer. A
// message that was perhaps sent before the oldest row that is left is no phantom.
func TestPhantomsAreComparedWithTheSentLogAsItIsNow(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		hours := func(n int) time.Time { return b.start.Add(time.Duration(n) * time.Hour) }
		b.receiver.handled(billed, hours(4), timed(hours(2), 7), timed(hours(3).Add(margin/2), 8))
		b.sender.sent(topic, hours(3), "third")
		b.receiver.handled(billed, hours(3), "third")
		s := b.newSender(SenderConfig{})
		for _, want := range []int{2, 0} {
			question, err := s.Question(b.Context())
			kit.OK(b, err)
			answer, err := b.newReceiver(ReceiverConfig{}).Answer(b.Context(), question)
			kit.OK(b, err)
			if want == 0 {
				b.sender.exec(`DELETE FROM once_outbox_sent WHERE message_id = 'first'`)
			}
			reports, err := s.Read(b.Context(), answer)
			kit.OK(b, err)
			if got := phantomIDs(reports[0]); len(got) != want {
				b.Fatalf("the phantoms are %q, want %d", got, want)
			}
		}
	})
}

func TestPhantomsMayBePendingOrDead(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		at := b.start.Add(time.Hour)
		pending, dead, never := timed(at, 1), timed(at, 2), timed(at, 3)
		b.receiver.handled(billed, at, pending, dead, never)
		b.sender.exec(`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata) VALUES (1, $1, $2, 0, 'x', '{}')`,
			pending, topic)
		b.sender.exec(`INSERT INTO once_outbox_dead (message_id, topic, position, payload, metadata, created_at, attempts, last_error, reason,
			unknown) VALUES ($1, $2, 2, 'x', '{}', $3, 1, '', 'exhausted', $4)`, dead, topic, b.sender.at(at), true)
		r := b.compare()
		got := map[string][2]bool{}
		for _, p := range r.Phantoms {
			got[p.MessageID] = [2]bool{p.Pending, p.Dead}
		}
		if want := map[string][2]bool{pending: {true, false}, dead: {false, true}, never: {}}; !maps.Equal(got, want) {
			b.Fatalf("got %v, want %v", got, want)
		}
		if r.Pending.N != 1 {
			b.Fatalf("r.Pending.N is %d, want 1", r.Pending.N)
		}
		if r.Dead.N != 1 {
			b.Fatalf("r.Dead.N is %d, want 1", r.Dead.N)
		}
		if r.Dead.Oldest.Sub(at).Abs() > time.Second {
			b.Fatalf("r.Dead.Oldest is %v, want %v, give or take %v", r.Dead.Oldest, at, time.Second)
		}
	})
}

// This test generates random differences in real databases, and checks that exactly these
// are found.
func TestGeneratedDifferences(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		r := rand.New(rand.NewPCG(7, 7))
		var missing, phantoms, both []string
		for i := range uint64(3000) {
			id := timed(b.start.Add(2*time.Minute+time.Duration(r.Int64N(int64(3*time.Hour)))), i)
			switch r.IntN(100) {
			case 0:
				missing = append(missing, id)
			case 1:
				phantoms = append(phantoms, id)
			default:
				both = append(both, id)
			}
		}
		at := b.start.Add(3*time.Hour + 30*time.Minute)
		b.sender.sent(topic, at, append(slices.Clone(both), missing...)...)
		b.receiver.handled(billed, at, append(slices.Clone(both), phantoms...)...)
		report := b.compare()
		got := missingIDs(report)
		slices.Sort(got)
		slices.Sort(missing)
		slices.Sort(phantoms)
		if !reflect.DeepEqual(got, missing) {
			b.Fatalf("got %q, want %q", got, missing)
		}
		if got := phantomIDs(report); !reflect.DeepEqual(got, phantoms) {
			b.Fatalf("phantomIDs(report) are %q, want %q", got, phantoms)
		}
	})
}

// If two consumers answer the same question, each report must contain only the
// differences of its own consumer.
func TestEachConsumerIsComparedAlone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		at := b.start.Add(time.Hour)
		id := timed(at, 1)
		b.sender.sent(topic, at, id)
		b.receiver.handled(billed, at, id)
		b.receiver.handled("mailing", b.start, "first")
		reports, err := Compare(b.Context(), b.newSender(SenderConfig{}), b.newReceiver(ReceiverConfig{Consumers: []string{billed, "mailing"}}))
		kit.OK(b, err)
		if len(reports[0].Missing) != 0 {
			b.Fatalf("reports[0].Missing is %+v, want none", reports[0].Missing)
		}
		if reports[1].Consumer != "mailing" {
			b.Fatalf(`reports[1].Consumer is %q, want "mailing"`, reports[1].Consumer)
		}
		if got, want := missingIDs(reports[1]), []string{id}; !slices.Equal(got, want) {
			b.Fatalf("missingIDs(reports[1]) are %q, want %q", got, want)
		}
	})
}
