package dead_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/quarantine"
)

// quarantine returns a Quarantine, which lists and stops the replays of this package.
func (b *bench) quarantine() *quarantine.Entries {
	b.Helper()
	q, err := quarantine.New(b.DB, operate.Config{Schema: b.Config})
	kit.OK(b, err)
	return q
}

// reported fails the test unless a replay has returned the wanted report and the wanted
// error.
func (b *bench) reported(replay operate.Replay, err error, want operate.Report, wantErr error) {
	b.Helper()
	if !errors.Is(err, wantErr) {
		b.Fatalf("error %v, want %v", err, wantErr)
	}
	if got := replay.Report; !reflect.DeepEqual(got, want) {
		b.Fatalf("report %+v, want %+v", got, want)
	}
}

// refused fails the test unless the error contains text.
func (b *bench) refused(err error, text string) {
	b.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		b.Fatalf("error %v, want %q", err, text)
	}
}

func TestReplayOfDeadLettersIsListed(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""), msg("b", ""))
		report, err := b.letters.ReplayMatching(b.Context(), ann, everything, operate.Plan{Rate: 1000})
		finished := operate.Report{ID: 1, State: operate.ReplayFinished, Total: 2, Changed: 2}
		b.reported(report, err, finished, nil)

		report, err = b.letters.ReplayMatching(b.Context(), ann, everything, operate.Plan{}) // nothing matches
		b.reported(report, err, operate.Report{State: operate.ReplayFinished}, nil)
		_, err = b.letters.ReplayMatching(b.Context(), ann, operate.Filter{Fingerprint: "unknown"}, operate.Plan{})
		b.refused(err, `dead: replay: failure group "unknown": not found`)

		replays, err := b.quarantine().Replays(b.Context(), 0)
		if err != nil || len(replays) != 1 {
			b.Fatalf("%v, %+v", err, replays)
		}
		r := replays[0]
		if r.Source != operate.SourceDead || r.Actor != "ann" || r.Plan.Rate != 1000 || !reflect.DeepEqual(r.Filter, everything) {
			b.Errorf("replay %+v", r)
		}
		b.reported(r, nil, finished, nil)
		b.WantNumber(2, `SELECT COUNT(*) FROM once_audit WHERE replay_id = 1`)
		if _, err := b.letters.Resume(b.Context(), ann, 1, nil); !errors.Is(err, operate.ErrReplayFinished) {
			b.Errorf("error %v", err)
		}
		if _, err := b.letters.Resume(b.Context(), ann, 2, nil); !errors.Is(err, operate.ErrReplayNotFound) {
			b.Errorf("error %v", err)
		}
	})
}

func TestReplayOfSentMessagesIsStoppedAndResumed(t *testing.T) {
	kit.Long(t)
	eachDatabase(t, func(b *bench) {
		for i := range 30 {
			b.record("t", msg(fmt.Sprint("m", i), ""))
		}
		q := b.quarantine()
		report, err := b.log.ReplayMatching(b.Context(), ann, everything, operate.Plan{
			Rate: 20, // 5 a batch
			Progress: func(r operate.Report) {
				kit.Check(b, kit.Err(q.StopReplay(b.Context(), ann, r.ID)))
			},
		})
		b.refused(err, "by ann: the queue is back")
		before := report.Changed
		b.reported(report, err, operate.Report{ID: 1, State: operate.ReplayStopped, Total: 30, Changed: before}, operate.ErrReplayStopped)
		if n := b.pending(); n != before { // the batch after the stop is rolled back
			b.Fatalf("%d pending, want %d", n, before)
		}

		_, err = b.letters.Resume(b.Context(), ann, report.ID, nil)
		b.refused(err, `replay 1 is of source "sent", not "dead"`)
		_, err = q.Resume(b.Context(), ann, report.ID, nil)
		b.refused(err, `replay 1 is of source "sent"`)

		ctx, cancel := context.WithCancelCause(b.Context())
		defer cancel(nil)
		report, err = b.log.Resume(ctx, ann, report.ID, func(r operate.Report) {
			if _, err := b.log.Resume(b.Context(), ann, r.ID, nil); !errors.Is(err, operate.ErrReplayRunning) {
				b.Errorf("it was resumed twice: %v", err)
			}
			cancel(errors.New("the service stops"))
		})
		paused := report.Changed
		b.reported(report, err, operate.Report{ID: 1, State: operate.ReplayPaused, Total: 30, Changed: paused}, context.Canceled)
		if n := b.Number(`SELECT COUNT(*) FROM once_audit JOIN once_replays AS r ON r.id = replay_id
			WHERE action = 'pause' AND once_audit.actor = 'ann' AND subject = 'replay:1' AND stop_reason = 'interrupted: the service stops'
			  AND once_audit.why = 'interrupted: the service stops; reason of the replay: ` + ann.Why + `'`); n != 1 {
			b.Errorf("%d rows in the audit log for the pause", n)
		}
		if n := b.pending(); n != paused || paused <= before {
			b.Fatalf("%d pending, want %d, over %d", n, paused, before)
		}

		report, err = b.log.Resume(b.Context(), ann, report.ID, nil)
		b.reported(report, err, operate.Report{ID: 1, State: operate.ReplayFinished, Total: 30, Changed: 30}, nil)
		if n, distinct := b.pending(), b.Number(`SELECT COUNT(DISTINCT message_id) FROM once_outbox`); n != 30 || distinct != 30 {
			b.Errorf("%d pending of %d messages", n, distinct)
		}
	})
}

// A replay with a low rate waits up to a second between its batches. Its lease must be
// longer than this wait. Otherwise another process would treat the replay as abandoned.
func TestReplayThatWaitsForItsRateKeepsItsLease(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""), msg("b", ""))
		config := operate.Config{Schema: b.Config, ReplayLease: 500 * time.Millisecond}
		letters, err := dead.New(b.DB, config)
		kit.OK(b, err)
		// The batch writes its audit row first, and then the lease.
		remaining := `SELECT (EXTRACT(EPOCH FROM lease_until - (SELECT MAX(at) FROM once_audit)) * 1000)::bigint FROM once_replays`
		if b.SQLite() {
			remaining = `SELECT lease_until - (SELECT MAX(at) FROM once_audit) FROM once_replays`
		}
		expect := func(want int) func(operate.Report) {
			return func(operate.Report) {
				if got := b.Number(remaining); got < want {
					b.Errorf("the lease is %d ms, want at least %d", got, want)
				}
			}
		}
		ctx, cancel := context.WithCancel(b.Context())
		report, err := letters.ReplayMatching(ctx, ann, everything, operate.Plan{Rate: 1, Progress: func(r operate.Report) {
			expect(1500)(r)
			cancel() // the second batch would come a second later
		}})
		b.reported(report, err, operate.Report{ID: 1, State: operate.ReplayPaused, Total: 2, Changed: 1}, context.Canceled)
		report, err = letters.Resume(b.Context(), ann, 1, expect(1500))
		b.reported(report, err, operate.Report{ID: 1, State: operate.ReplayFinished, Total: 2, Changed: 2}, nil)
	})
}
