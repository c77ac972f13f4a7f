package deadletter_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/watermill-once/once/deadletter"
)

func TestDryRunShowsWhatReplayMatchingDoes(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("old", ""), msg("a", "key"), msg("b", ""), msg("late", ""))
		b.exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id = 'old'`)
		b.exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id = 'b'`)
		b.exec(`UPDATE once_outbox_dead SET last_error = 'another' WHERE message_id = 'late'`)
		b.age("once_outbox_dead", "died_at", 8*24*time.Hour, `message_id = 'old'`)
		groups, err := b.letters.DryRun(b.Context(), everything, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if len(groups) != 2 {
			b.Fatalf("%d groups, want 2: %+v", len(groups), groups)
		}
		if groups[0].Error != "another" {
			b.Fatalf(`groups[0].Error is %q, want "another"`, groups[0].Error)
		}
		got := groups[1]
		if got.FirstFailedAt.Sub(time.Now().Add(-8*24*time.Hour)).Abs() > time.Minute {
			b.Fatalf("got.FirstFailedAt is %v, want %v, give or take %v", got.FirstFailedAt, time.Now().Add(-8*24*time.Hour), time.Minute)
		}
		if time.Since(got.LastFailedAt).Abs() > time.Minute {
			b.Fatalf("got.LastFailedAt is %v, want %v, give or take %v", got.LastFailedAt, time.Now(), time.Minute)
		}
		want := deadletter.Group{
			Fingerprint: "exhausted: no queue", Count: 3, Topics: []string{"s", "t"}, Reason: "exhausted", Error: "no queue",
			FirstFailedAt: got.FirstFailedAt, LastFailedAt: got.LastFailedAt, Skipped: []int64{1},
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}

		limited, err := b.letters.DryRun(b.Context(), deadletter.Filter{All: true, Limit: 1}, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if len(limited) != 1 {
			b.Fatalf("len(limited) is %d, want 1: %+v", len(limited), limited)
		}
		if limited[0].Count != 2 {
			b.Fatalf("limited[0].Count is %d, want 2: a letter that is skipped does not count against the Limit", limited[0].Count)
		}
		forced, err := b.letters.DryRun(b.Context(), deadletter.Filter{All: true, Limit: 1}, deadletter.Plan{Force: true})
		if err != nil {
			b.Fatal(err)
		}
		if forced[0].Count != 1 {
			b.Fatalf("forced[0].Count is %d, want 1", forced[0].Count)
		}
		if len(forced[0].Skipped) != 0 {
			b.Fatalf("forced[0].Skipped is %v, want none", forced[0].Skipped)
		}
		none, err := b.letters.DryRun(b.Context(), deadletter.Filter{Topic: "no such topic"}, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if len(none) != 0 {
			b.Fatalf("none is %+v, want none", none)
		}

		if got := b.dead(); got != 4 {
			b.Fatalf("dead is %d, want 4: nothing changed", got)
		}
		if got := b.pending(); got != 0 {
			b.Fatalf("pending is %d, want 0", got)
		}
		if got := b.audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}

		report, err := b.letters.ReplayMatching(b.Context(), ann, deadletter.Filter{All: true, Limit: 1}, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 1, Replayed: 1, Skipped: []int64{1}}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
	})
}

func TestDryRunOfTheSentLog(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.record("b", msg("1", ""), msg("2", ""))
		b.record("a", msg("3", ""))
		b.age("once_outbox_sent", "sent_at", 8*24*time.Hour, `message_id = '2'`)
		groups, err := b.log.DryRun(b.Context(), everything, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if len(groups) != 2 {
			b.Fatalf("%d groups, want 2: %+v", len(groups), groups)
		}
		if groups[0].Topic != "a" {
			b.Fatalf(`groups[0].Topic is %q, want "a"`, groups[0].Topic)
		}
		if len(groups[0].Skipped) != 0 {
			b.Fatalf("groups[0].Skipped is %v, want none", groups[0].Skipped)
		}
		got := groups[1]
		if got.FirstSentAt.Sub(time.Now().Add(-8*24*time.Hour)).Abs() > time.Minute {
			b.Fatalf("got.FirstSentAt is %v, want %v, give or take %v", got.FirstSentAt, time.Now().Add(-8*24*time.Hour), time.Minute)
		}
		if time.Since(got.LastSentAt).Abs() > time.Minute {
			b.Fatalf("got.LastSentAt is %v, want %v, give or take %v", got.LastSentAt, time.Now(), time.Minute)
		}
		want := deadletter.SentGroup{
			Topic: "b", Count: 2, FirstSentAt: got.FirstSentAt, LastSentAt: got.LastSentAt, Skipped: []int64{2},
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}
		if got := b.pending(); got != 0 {
			b.Fatalf("pending is %d, want 0", got)
		}
	})
}
