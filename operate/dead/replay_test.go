package dead_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
)

func TestReplayMatchingPutsLettersBack(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := described()
		m.Payload = []byte{0, 255}
		b.publish("t", msg("earlier", ""))
		b.insertDead(m, msg("free", ""), msg("other", ""))
		b.Exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id = 'free'`)
		chosen := operate.Filter{IDs: []int64{1, 2, 4711}}
		var progress []int
		report, err := b.letters.ReplayMatching(b.Context(), ann, chosen, operate.Plan{
			Progress: func(r operate.Report) { progress = append(progress, r.Changed) },
		})
		kit.OK(b, err)
		if want := (operate.Report{Total: 2, Changed: 2}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if want := []int{2}; !slices.Equal(progress, want) {
			b.Fatalf("progress is %v, want %v", progress, want)
		}
		b.wantDead(1)
		want := []string{
			"ann | replay | dead:1 | described | the queue is back",
			"ann | replay | dead:2 | free | the queue is back",
		}
		if got := b.Audits(); !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
		b.WantNumber(2, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0 AND due_at IS NULL AND position IN (2, 3)`)
		b.WantNumber(1, `SELECT COUNT(*) FROM once_outbox WHERE unknown AND message_id = 'free'`)

		// The replayed messages are in the slots that the outbox would have chosen.
		b.publish("t", msg("free", ""), msg("same key", `it's "k"`))
		b.WantNumber(2, `SELECT COUNT(DISTINCT slot) FROM once_outbox WHERE position > 1`)

		p := &publisher{}
		b.forward(p, 0, forwarder.SendSuccessors)
		var ids []string
		for _, m := range p.sent {
			ids = append(ids, m.UUID)
		}
		if want := []string{"earlier", "described", "free", "free", "same key"}; !slices.Equal(ids, want) {
			b.Fatalf("ids is %q, want %q", ids, want)
		}
		if want := (message.Payload{0, 255}); !bytes.Equal(p.sent[1].Payload, want) {
			b.Fatalf("p.sent[1].Payload is %q, want %q", p.sent[1].Payload, want)
		}
		if got := unstamped(p.sent[1]); !reflect.DeepEqual(got, m.Metadata) {
			b.Fatalf("unstamped(p.sent[1]) is %v, want %v", got, m.Metadata)
		}
	})
}

// Trap 72. If a message may have been sent longer ago than InboxRetention, consumers
// may have forgotten its id. A replay of this message must need force.
func TestReplayNeedsForceWhenInboxesMayHaveForgotten(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("unknown, old", ""), msg("unknown, new", ""), msg("known, old", ""))
		b.Exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id LIKE 'unknown%'`)
		b.age("once_outbox_dead", "died_at", 25*time.Hour, `message_id LIKE '%old'`)
		letters, _ := b.remembering(24 * time.Hour)
		report, err := letters.ReplayMatching(b.Context(), ann, everything, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Total: 3, Changed: 2, Skipped: []int64{1}}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		b.WantNumber(0, `SELECT COUNT(*) FROM once_outbox WHERE message_id = 'unknown, old'`)
		if got := b.Audits(); len(got) != 2 {
			b.Fatalf("%d audits, want 2: %q", len(got), got)
		}

		err = letters.Replay(b.Context(), ann, 1)
		if !errors.Is(err, operate.ErrNeedsForce) {
			b.Fatalf("got %v, want ErrNeedsForce", err)
		}
		if err == nil || !strings.Contains(err.Error(), "InboxRetention") {
			b.Fatalf(`got %v, want an error with "InboxRetention"`, err)
		}
		report, err = letters.ReplayMatching(b.Context(), ann, everything, operate.Plan{Force: true})
		kit.OK(b, err)
		if want := (operate.Report{Total: 1, Changed: 1}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		b.wantPending(3)
	})
}

func TestReplayNeedsForceWhenTheOutboxWouldRefuse(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("malformed", ""), msg("invalid", ""), msg("exhausted", ""))
		b.Exec(`UPDATE once_outbox_dead SET reason = message_id`)
		report, err := b.letters.ReplayMatching(b.Context(), ann, everything, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Total: 3, Changed: 1, Skipped: []int64{1, 2}}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if err := b.letters.Replay(b.Context(), ann, 1); !errors.Is(err, operate.ErrNeedsForce) {
			b.Fatalf("Replay: got %v, want ErrNeedsForce", err)
		}
		report, err = b.letters.ReplayMatching(b.Context(), ann, operate.Filter{Reason: "invalid"}, operate.Plan{Force: true})
		kit.OK(b, err)
		if want := (operate.Report{Total: 1, Changed: 1}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
	})
}

// Trap 52. If several replays run at the same time, each letter must be replayed once.
func TestReplaysAtTheSameTime(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		const letters = 450
		b.insertDead(messages(letters)...)
		var (
			done    [3]operate.Replay
			errs    [3]error
			working sync.WaitGroup
		)
		for i := range done {
			working.Go(func() {
				done[i], errs[i] = b.letters.ReplayMatching(b.Context(), ann, everything, operate.Plan{})
			})
		}
		working.Wait()
		kit.OK(b, errors.Join(errs[:]...))
		if done[0].Changed+done[1].Changed+done[2].Changed != letters {
			b.Fatalf("the number of replayed letters is %d, want %d",
				done[0].Changed+done[1].Changed+done[2].Changed, letters)
		}
		b.wantPending(letters)
		b.WantNumber(letters, `SELECT COUNT(DISTINCT message_id) FROM once_outbox`)
		if got := b.Audits(); len(got) != letters {
			b.Fatalf("%d audits, want %d: %q", len(got), letters, got)
		}
		b.wantDead(0)
	})
}

func TestReplayMatchingStopsWhenItsContextEnds(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(30)...)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		began, stopped := time.Now(), 0
		report, err := b.letters.ReplayMatching(ctx, ann, everything, operate.Plan{
			Rate: 20, // 5 a batch
			Progress: func(r operate.Report) {
				if r.Changed >= 10 && stopped == 0 { // more at once on a busy machine
					stopped = r.Changed
					cancel()
				}
			},
		})
		if !errors.Is(err, context.Canceled) {
			b.Fatalf("got %v, want context.Canceled", err)
		}
		if want := (operate.Report{Total: 30, Changed: stopped}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got := time.Since(began); got < 240*time.Millisecond {
			b.Fatalf("time.Since(began) is %v, want at least %v: the rate was kept", got, 240*time.Millisecond)
		}
		b.wantPending(stopped)
		b.wantDead(30 - stopped)
		if got := b.Audits(); len(got) != stopped+1 { // one for the pause
			b.Fatalf("%d audits, want %d: %q", len(got), stopped+1, got)
		}

		report, err = b.letters.ReplayMatching(b.Context(), ann, operate.Filter{All: true, Limit: 3}, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Total: 3, Changed: 3}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		b.wantPending(stopped + 3)
	})
}

// A message that becomes a dead letter again while the replay runs must not keep
// the replay running.
func TestReplayMatchingLeavesNewLettersAlone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""), msg("b", ""), msg("c", ""))
		report, err := b.letters.ReplayMatching(b.Context(), ann, everything, operate.Plan{
			Rate:     8, // 2 a batch
			Progress: func(operate.Report) { b.insertDead(msg("again", "")) },
		})
		kit.OK(b, err)
		if report.Changed != 3 {
			b.Fatalf("report.Replayed is %d, want 3", report.Changed)
		}
	})
}

func TestReplayPutsAllLettersBackOrNone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", "key"), msg("b", ""), msg("c", ""))
		b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key', 1000, 1000, 'dead')`)
		err := b.letters.Replay(b.Context(), ann, 1, 4711)
		if !errors.Is(err, operate.ErrNotFound) {
			b.Fatalf("got %v, want ErrNotFound", err)
		}
		if err == nil || err.Error() != "dead: replay: dead letter 4711: not found" {
			b.Fatalf(`got %v, want "deadletter: replay: dead letter 4711: not found"`, err)
		}
		b.wantDead(3)
		b.wantPending(0)
		if got := b.Audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}

		if err := b.letters.Replay(b.Context(), ann, 3, 1, 3); err != nil {
			b.Fatalf("%v: in any order, and named twice", err)
		}
		b.wantDead(1)
		b.wantPending(2)
		got := b.Number(`SELECT COUNT(*) FROM once_blocked_keys AS b JOIN once_outbox AS o ON o.position = b.position
			WHERE b.reason = 'replayed' AND o.message_id = 'a'`)
		if got != 1 {
			b.Fatalf("count is %d, want 1", got)
		}
		want := []string{
			"ann | replay | dead:1 | a | the queue is back", "ann | replay | dead:3 | c | the queue is back",
		}
		if got := b.Audits(); !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
		if err := b.letters.Replay(b.Context(), ann, 1); !errors.Is(err, operate.ErrNotFound) {
			b.Fatalf("Replay: got %v, want ErrNotFound: it was replayed", err)
		}
	})
}

func TestDryRunShowsWhatReplayMatchingDoes(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("old", ""), msg("a", "key"), msg("b", ""), msg("late", ""))
		b.Exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id = 'old'`)
		b.Exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id = 'b'`)
		b.Exec(`UPDATE once_outbox_dead SET last_error = 'another', fingerprint = 'exhausted: another' WHERE message_id = 'late'`)
		b.age("once_outbox_dead", "died_at", 8*24*time.Hour, `message_id = 'old'`)
		groups, err := b.letters.DryRun(b.Context(), everything, operate.Plan{})
		kit.OK(b, err)
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
		want := operate.Group{
			Fingerprint: "exhausted: no queue", Count: 3, Topics: []string{"s", "t"}, Reason: "exhausted", Error: "no queue",
			FirstFailedAt: got.FirstFailedAt, LastFailedAt: got.LastFailedAt, Skipped: []int64{1},
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}

		limited, err := b.letters.DryRun(b.Context(), operate.Filter{All: true, Limit: 1}, operate.Plan{})
		kit.OK(b, err)
		if len(limited) != 1 {
			b.Fatalf("len(limited) is %d, want 1: %+v", len(limited), limited)
		}
		if limited[0].Count != 2 {
			b.Fatalf("limited[0].Count is %d, want 2: a letter that is skipped does not count against the Limit", limited[0].Count)
		}
		forced, err := b.letters.DryRun(b.Context(), operate.Filter{All: true, Limit: 1}, operate.Plan{Force: true})
		kit.OK(b, err)
		if forced[0].Count != 1 {
			b.Fatalf("forced[0].Count is %d, want 1", forced[0].Count)
		}
		if len(forced[0].Skipped) != 0 {
			b.Fatalf("forced[0].Skipped is %v, want none", forced[0].Skipped)
		}
		none, err := b.letters.DryRun(b.Context(), operate.Filter{Topic: "no such topic"}, operate.Plan{})
		kit.OK(b, err)
		if len(none) != 0 {
			b.Fatalf("none is %+v, want none", none)
		}

		if got := b.dead(); got != 4 {
			b.Fatalf("dead is %d, want 4: nothing changed", got)
		}
		b.wantPending(0)
		if got := b.Audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}

		report, err := b.letters.ReplayMatching(b.Context(), ann, operate.Filter{All: true, Limit: 1}, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Total: 1, Changed: 1, Skipped: []int64{1}}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
	})
}

func TestDryRunOfTheSentLog(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.record("b", msg("1", ""), msg("2", ""))
		b.record("a", msg("3", ""))
		b.age("once_outbox_sent", "sent_at", 8*24*time.Hour, `message_id = '2'`)
		groups, err := b.log.DryRun(b.Context(), everything, operate.Plan{})
		kit.OK(b, err)
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
		want := dead.SentGroup{
			Topic: "b", Count: 2, FirstSentAt: got.FirstSentAt, LastSentAt: got.LastSentAt, Skipped: []int64{2},
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}
		b.wantPending(0)
	})
}
