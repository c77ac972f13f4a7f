package deadletter_test

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

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
)

func TestReplayMatchingPutsLettersBack(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := described()
		m.Payload = []byte{0, 255}
		b.publish("t", msg("earlier", ""))
		b.insertDead(m, msg("free", ""), msg("other", ""))
		b.exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id = 'free'`)
		chosen := deadletter.Filter{IDs: []int64{1, 2, 4711}}
		var progress []int
		report, err := b.letters.ReplayMatching(b.Context(), ann, chosen, deadletter.Plan{
			Progress: func(r deadletter.Report) { progress = append(progress, r.Replayed) },
		})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 2, Replayed: 2}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if want := []int{2}; !slices.Equal(progress, want) {
			b.Fatalf("progress is %v, want %v", progress, want)
		}
		if got := b.dead(); got != 1 {
			b.Fatalf("dead is %d, want 1", got)
		}
		want := []string{
			"ann | replay | dead:1 | described | the queue is back",
			"ann | replay | dead:2 | free | the queue is back",
		}
		if got := b.audits(); !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
		if got := b.count(`SELECT COUNT(*) FROM once_outbox WHERE attempts = 0 AND due_at IS NULL AND position IN (2, 3)`); got != 2 {
			b.Fatalf("count is %d, want 2", got)
		}
		if got := b.count(`SELECT COUNT(*) FROM once_outbox WHERE unknown AND message_id = 'free'`); got != 1 {
			b.Fatalf("count is %d, want 1", got)
		}

		// The replayed messages are in the slots that the outbox would have chosen.
		b.publish("t", msg("free", ""), msg("same key", `it's "k"`))
		if got := b.count(`SELECT COUNT(DISTINCT slot) FROM once_outbox WHERE position > 1`); got != 2 {
			b.Fatalf("count is %d, want 2", got)
		}

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
		b.exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id LIKE 'unknown%'`)
		b.age("once_outbox_dead", "died_at", 25*time.Hour, `message_id LIKE '%old'`)
		letters, _ := b.remembering(24 * time.Hour)
		report, err := letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 3, Replayed: 2, Skipped: []int64{1}}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got := b.count(`SELECT COUNT(*) FROM once_outbox WHERE message_id = 'unknown, old'`); got != 0 {
			b.Fatalf("count is %d, want 0", got)
		}
		if got := b.audits(); len(got) != 2 {
			b.Fatalf("%d audits, want 2: %q", len(got), got)
		}

		err = letters.Replay(b.Context(), ann, 1)
		if !errors.Is(err, deadletter.ErrNeedsForce) {
			b.Fatalf("got %v, want ErrNeedsForce", err)
		}
		if err == nil || !strings.Contains(err.Error(), "InboxRetention") {
			b.Fatalf(`got %v, want an error with "InboxRetention"`, err)
		}
		report, err = letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{Force: true})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 1, Replayed: 1}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got := b.pending(); got != 3 {
			b.Fatalf("pending is %d, want 3", got)
		}
	})
}

func TestReplayNeedsForceWhenTheOutboxWouldRefuse(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("malformed", ""), msg("invalid", ""), msg("exhausted", ""))
		b.exec(`UPDATE once_outbox_dead SET reason = message_id`)
		report, err := b.letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 3, Replayed: 1, Skipped: []int64{1, 2}}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if err := b.letters.Replay(b.Context(), ann, 1); !errors.Is(err, deadletter.ErrNeedsForce) {
			b.Fatalf("Replay: got %v, want ErrNeedsForce", err)
		}
		report, err = b.letters.ReplayMatching(b.Context(), ann, deadletter.Filter{Reason: "invalid"}, deadletter.Plan{Force: true})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 1, Replayed: 1}); !reflect.DeepEqual(counts(report), want) {
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
			done    [3]deadletter.Report
			errs    [3]error
			working sync.WaitGroup
		)
		for i := range done {
			working.Go(func() {
				done[i], errs[i] = b.letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{})
			})
		}
		working.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			b.Fatal(err)
		}
		if done[0].Replayed+done[1].Replayed+done[2].Replayed != letters {
			b.Fatalf("done[0].Replayed+done[1].Replayed+done[2].Replayed is %d, want %d",
				done[0].Replayed+done[1].Replayed+done[2].Replayed, letters)
		}
		if got := b.pending(); got != letters {
			b.Fatalf("pending is %d, want %d", got, letters)
		}
		if got := b.count(`SELECT COUNT(DISTINCT message_id) FROM once_outbox`); got != letters {
			b.Fatalf("count is %d, want %d", got, letters)
		}
		if got := b.audits(); len(got) != letters {
			b.Fatalf("%d audits, want %d: %q", len(got), letters, got)
		}
		if got := b.dead(); got != 0 {
			b.Fatalf("dead is %d, want 0", got)
		}
	})
}

func TestReplayMatchingStopsWhenItsContextEnds(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(30)...)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		began, stopped := time.Now(), 0
		report, err := b.letters.ReplayMatching(ctx, ann, everything, deadletter.Plan{
			Rate: 20, // 5 a batch
			Progress: func(r deadletter.Report) {
				if r.Replayed >= 10 && stopped == 0 { // more at once on a busy machine
					stopped = r.Replayed
					cancel()
				}
			},
		})
		if !errors.Is(err, context.Canceled) {
			b.Fatalf("got %v, want context.Canceled", err)
		}
		if want := (deadletter.Report{Total: 30, Replayed: stopped}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got := time.Since(began); got < 240*time.Millisecond {
			b.Fatalf("time.Since(began) is %v, want at least %v: the rate was kept", got, 240*time.Millisecond)
		}
		if got := b.pending(); got != stopped {
			b.Fatalf("pending is %d, want %d", got, stopped)
		}
		if got := b.dead(); got != 30-stopped {
			b.Fatalf("dead is %d, want %d", got, 30-stopped)
		}
		if got := b.audits(); len(got) != stopped {
			b.Fatalf("%d audits, want %d: %q", len(got), stopped, got)
		}

		report, err = b.letters.ReplayMatching(b.Context(), ann, deadletter.Filter{All: true, Limit: 3}, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if want := (deadletter.Report{Total: 3, Replayed: 3}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got := b.pending(); got != stopped+3 {
			b.Fatalf("pending is %d, want %d", got, stopped+3)
		}
	})
}

// A message that becomes a dead letter again while the replay runs must not keep
// the replay running.
func TestReplayMatchingLeavesNewLettersAlone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""), msg("b", ""), msg("c", ""))
		report, err := b.letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{
			Rate:     8, // 2 a batch
			Progress: func(deadletter.Report) { b.insertDead(msg("again", "")) },
		})
		if err != nil {
			b.Fatal(err)
		}
		if report.Replayed != 3 {
			b.Fatalf("report.Replayed is %d, want 3", report.Replayed)
		}
	})
}

func TestReplayPutsAllLettersBackOrNone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", "key"), msg("b", ""), msg("c", ""))
		b.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key', 1000, 1000, 'dead')`)
		err := b.letters.Replay(b.Context(), ann, 1, 4711)
		if !errors.Is(err, deadletter.ErrNotFound) {
			b.Fatalf("got %v, want ErrNotFound", err)
		}
		if err == nil || err.Error() != "deadletter: replay: dead letter 4711: not found" {
			b.Fatalf(`got %v, want "deadletter: replay: dead letter 4711: not found"`, err)
		}
		if got := b.dead(); got != 3 {
			b.Fatalf("dead is %d, want 3", got)
		}
		if got := b.pending(); got != 0 {
			b.Fatalf("pending is %d, want 0", got)
		}
		if got := b.audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}

		if err := b.letters.Replay(b.Context(), ann, 3, 1, 3); err != nil {
			b.Fatalf("%v: in any order, and named twice", err)
		}
		if got := b.dead(); got != 1 {
			b.Fatalf("dead is %d, want 1", got)
		}
		if got := b.pending(); got != 2 {
			b.Fatalf("pending is %d, want 2", got)
		}
		got := b.count(`SELECT COUNT(*) FROM once_blocked_keys AS b JOIN once_outbox AS o ON o.position = b.position
			WHERE b.reason = 'replayed' AND o.message_id = 'a'`)
		if got != 1 {
			b.Fatalf("count is %d, want 1", got)
		}
		want := []string{
			"ann | replay | dead:1 | a | the queue is back", "ann | replay | dead:3 | c | the queue is back",
		}
		if got := b.audits(); !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
		if err := b.letters.Replay(b.Context(), ann, 1); !errors.Is(err, deadletter.ErrNotFound) {
			b.Fatalf("Replay: got %v, want ErrNotFound: it was replayed", err)
		}
	})
}
