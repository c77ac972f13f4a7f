package reconcile

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	// Untimed phantoms may be messages that the log has forgotten, see below.
	reports, err := Compare(b.Context(), b.newSender(SenderConfig{LongestDelay: time.Minute}), b.newReceiver(ReceiverConfig{}))
	require.NoError(b, err)
	r := reports[0]
	got := phantomIDs(r)
	slices.Sort(got)
	slices.Sort(phantoms)
	require.Equal(b, missing, missingIDs(r))
	require.Equal(b, phantoms, got)
	require.True(b, r.Found())
	require.Equal(b, billed, r.Consumer)
	require.WithinDuration(b, at(147), r.MissingSince, time.Millisecond)
	require.NotZero(b, r.Missing[0].SentLogID)
	require.Equal(b, topic, r.Missing[0].Topic)
	require.Equal(b, Handled, r.Phantoms[0].State)
	require.Equal(b, 1, r.Questions)
	require.Equal(b, 588, r.Sent)
	require.Equal(b, 588, r.Known)
}

func TestParkedMessagesAreNotMissing(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		at := b.start.Add(time.Hour)
		for i, state := range []string{"waiting", "held", "quarantined", "resolved", "discarded"} {
			if state == "held" {
				continue // needs an ordering key, and counts as waiting
			}
			id := timed(at, uint64(i))
			b.sender.sent(topic, at, id)
			b.receiver.parked(state, at.Add(time.Minute), id)
		}
		both := timed(at, 77) // handled, and replayed since
		b.sender.sent(topic, at, both)
		b.receiver.handled(billed, at, both)
		b.receiver.parked("waiting", at.Add(time.Minute), both)
		r := b.compare()
		require.Empty(b, r.Missing)
		require.Empty(b, r.Phantoms)
		require.False(b, r.Found())
		require.Equal(b, 1, r.Quarantined())
		require.Equal(b, []State{Waiting, Quarantined, Discarded}, []State{r.Parked[0].State, r.Parked[1].State, r.Parked[2].State})
		require.Equal(b, 2, r.Parked[0].N)
		require.WithinDuration(b, at.Add(time.Minute), r.Parked[1].Oldest, time.Second)
	})
}

// A message that a sender published again is compared once.
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
		f, err := b.newSender(SenderConfig{}).Question(b.Context())
		require.NoError(b, err)
		a, err := b.newReceiver(ReceiverConfig{}).Answer(b.Context(), copied(b, f))
		require.NoError(b, err)
		r, err := b.newSender(SenderConfig{}).Read(b.Context(), copied(b, a))
		require.NoError(b, err)
		require.Equal(b, all[:1], missingIDs(r.Reports[0]))
		require.Equal(b, 50, r.Reports[0].Sent)
		require.WithinDuration(b, at, r.Reports[0].Missing[0].SentAt, time.Second)
		require.WithinDuration(b, at.Add(time.Hour), r.Reports[0].Missing[0].LastSentAt, time.Second)
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
		require.False(b, r.Found(), "%+v", r)
		require.Equal(b, 1, r.SentRecently)
	})
}

// Retention has deleted rows of one side that the other side still has.
func TestDeletedRowsAreNeverReported(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		days := func(n int) time.Time { return b.start.AddDate(0, 0, -n) }
		b.receiver.handled(billed, days(3), timed(days(3), 1), "old without a time", "key:order-1")
		r := b.compare() // the sent log begins five hours ago
		require.False(b, r.Found(), "%+v", r)
		require.Equal(b, b.start.Add(margin), r.From)
		require.False(b, r.BusinessKeys && r.Found())

		b.sender.exec(`DELETE FROM once_outbox_sent`)
		b.sender.sent(topic, days(9), timed(days(9), 2), "sent long ago")
		b.sender.sent(topic, days(5), timed(days(5), 2), "forgotten by the inbox")
		b.sender.sent(topic, days(2), timed(days(2), 3), "lost")
		b.sender.sent(topic, b.start, "first")
		b.receiver.exec(`DELETE FROM once_inbox WHERE message_id = 'old without a time' OR message_id LIKE '%-7001-%'`)
		b.receiver.handled(billed, days(3), timed(days(3), 9))
		b.sender.sent(topic, days(3), timed(days(3), 9))
		r = b.compare() // the inbox begins three days ago
		require.Equal(b, []string{timed(days(2), 3), "lost"}, missingIDs(r))
		require.Empty(b, r.Phantoms)
		require.Equal(b, days(3).Add(margin), r.From)
	})
}

// An id without a time may have been sent before the sent log begins.
func TestPhantomsWithoutATimeMustBeOlderThanTheLongestDelay(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.receiver.handled(billed, b.start.Add(2*time.Hour), "who sent it")
		reports, err := Compare(b.Context(), b.newSender(SenderConfig{LongestDelay: 3 * time.Hour}), b.newReceiver(ReceiverConfig{}))
		require.NoError(b, err)
		require.Empty(b, reports[0].Phantoms)
		reports, err = Compare(b.Context(), b.newSender(SenderConfig{LongestDelay: time.Hour}), b.newReceiver(ReceiverConfig{}))
		require.NoError(b, err)
		require.Equal(b, []string{"who sent it"}, phantomIDs(reports[0]))
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
		require.Equal(b, map[string][2]bool{pending: {true, false}, dead: {false, true}, never: {}}, got)
		require.Equal(b, 1, r.Pending.N)
		require.Equal(b, 1, r.Dead.N)
		require.WithinDuration(b, at, r.Dead.Oldest, time.Second)
	})
}

// Compares random differences across real databases with what was generated.
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
		require.Equal(b, missing, got)
		require.Equal(b, phantoms, phantomIDs(report))
	})
}

// One question serves several consumers.
func TestEachConsumerIsComparedAlone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		at := b.start.Add(time.Hour)
		id := timed(at, 1)
		b.sender.sent(topic, at, id)
		b.receiver.handled(billed, at, id)
		b.receiver.handled("mailing", b.start, "first")
		reports, err := Compare(b.Context(), b.newSender(SenderConfig{}), b.newReceiver(ReceiverConfig{Consumers: []string{billed, "mailing"}}))
		require.NoError(b, err)
		require.Empty(b, reports[0].Missing)
		require.Equal(b, "mailing", reports[1].Consumer)
		require.Equal(b, []string{id}, missingIDs(reports[1]))
	})
}
