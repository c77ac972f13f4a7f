package quarantine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

// fill puts n entries into quarantine.
func (b *bench) fill(consumer string, n int) {
	b.Helper()
	for i := range n {
		b.quarantine(consumer, fmt.Sprintf("%s-%04d", consumer, i))
	}
}

// counted is a handler that counts its calls and fails if the function fail returns true.
type counted struct {
	mu   sync.Mutex
	ran  map[string]int
	fail func(id string) bool
}

func (c *counted) handle(msg *message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ran == nil {
		c.ran = map[string]int{}
	}
	c.ran[msg.UUID]++
	if c.fail != nil && c.fail(msg.UUID) {
		return errHandler
	}
	return nil
}

func (c *counted) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.ran {
		n += times
	}
	return n
}

func counts(r operate.Report) string {
	return fmt.Sprintf("%s: %d of %d replayed, %d resolved, %d failed, %d waiting",
		r.State, r.Changed, r.Total, r.Resolved, r.Failed, r.Waiting)
}

func TestReplayMatchingEndsWhenAllAreSettled(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fill("payments", 12)
		b.fill("inventory", 2)
		c := &counted{fail: func(id string) bool { return strings.HasSuffix(id, "3") }}
		b.consume("payments", c.handle)
		var seen []operate.Report
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{
			Canary: 2, Window: 3, Progress: func(r operate.Report) { seen = append(seen, r) },
		})
		kit.OK(t, err)
		if got := counts(r.Report); got != "finished: 12 of 12 replayed, 11 resolved, 1 failed, 0 waiting" {
			t.Error(got)
		}
		for _, s := range seen {
			if s.Waiting > 3 || (s.Changed > 2 && s.Resolved < 2) {
				t.Errorf("on the way: %s", counts(s))
			}
		}
		if last := seen[len(seen)-1]; last.State != operate.ReplayFinished {
			t.Errorf("told last: %s", counts(last))
		}
		if c.total() != 12 || len(b.list()) != 3 {
			t.Errorf("%d calls, in quarantine are %q", c.total(), names(b.list()))
		}
		b.WantNumber(12, fmt.Sprintf(`SELECT COUNT(*) FROM once_audit WHERE action = 'replay' AND replay_id = %d`, r.ID))
		// The finished replay keeps its counts, whatever happens to its messages later.
		kit.OK(t, b.store.Discard(t.Context(), act, b.list()[0].ID))
		if again, err := b.store.ReplayOf(t.Context(), r.ID); err != nil || counts(again.Report) != counts(r.Report) || again.Actor != "ann" ||
			again.Filter.Consumer != "payments" || again.Plan.Canary != 2 || again.EndedAt.IsZero() {
			t.Errorf("%v, kept is %+v", err, again)
		}
		if _, err := b.store.Resume(t.Context(), act, r.ID, nil); !errors.Is(err, operate.ErrReplayFinished) {
			t.Errorf("resume: %v", err)
		}
		if _, err := b.store.ReplayOf(t.Context(), 4711); !errors.Is(err, operate.ErrReplayNotFound) {
			t.Errorf("unknown: %v", err)
		}
	})
}

// Progress is called after changes. If it were called whenever the replay reads its
// state, it would get the same counts twenty times a second.
func TestProgressIsCalledAfterChanges(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fill("payments", 1)
		b.consume("payments", func(*message.Message) error {
			<-time.After(400 * time.Millisecond) // some readings in this time find no change
			return nil
		})
		var (
			lines []string
			again int
		)
		began := time.Now()
		_, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{
			Progress: func(r operate.Report) {
				line := counts(r)
				if n := len(lines); n > 0 && lines[n-1] == line {
					again++
				}
				lines = append(lines, line)
			},
		})
		kit.OK(t, err)
		if seconds := int(time.Since(began) / time.Second); len(lines) < 3 || again > seconds+1 {
			t.Errorf("told in %d s: %q", seconds, lines)
		}
	})
}

// If the canary fails, no other entry is replayed. The replay can be resumed.
func TestFailedCanaryStopsTheReplay(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fill("payments", 20)
		c := &counted{fail: func(id string) bool { return id == "payments-0002" }}
		b.consume("payments", c.handle)
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{Canary: 3})
		if !errors.Is(err, operate.ErrReplayStopped) || !strings.Contains(err.Error(), "canary") {
			t.Fatalf("error %v", err)
		}
		if r.Changed != 3 || r.Failed != 1 || r.State != operate.ReplayStopped || c.total() > 3 {
			t.Fatalf("%s, %d calls", counts(r.Report), c.total())
		}
		r, err = b.store.Resume(t.Context(), operate.Act{Actor: "bob", Why: "only this one"}, r.ID, nil)
		if err != nil || counts(r.Report) != "finished: 20 of 20 replayed, 19 resolved, 1 failed, 0 waiting" || c.total() != 20 {
			t.Fatalf("%v, %s, %d calls", err, counts(r.Report), c.total())
		}
		if n := b.Number(`SELECT COUNT(*) FROM once_audit WHERE action = 'resume' AND actor = 'bob'`); n != 1 {
			t.Errorf("%d lines of audit of the resume", n)
		}
		const replayed = `SELECT COUNT(*) FROM once_audit WHERE action = 'replay' AND actor = `
		if ann, bob := b.Number(replayed+`'ann'`), b.Number(replayed+`'bob' AND why = 'only this one'`); ann != 3 || bob != 17 {
			t.Errorf("by the audit ann has replayed %d, and bob %d", ann, bob)
		}
	})
}

// No other message is replayed before the canary is settled, and no more messages
// wait than the window allows.
func TestReplayWaitsForCanaryAndWindow(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for name, plan := range map[string]operate.Plan{"canary": {Canary: 1}, "window": {Window: 1}} {
			b := newBench(t, db, nil)
			b.fill(name, 6)
			looks := 0
			plan.Progress = func(r operate.Report) {
				if r.Resolved > 0 || r.Changed == 0 {
					return
				}
				if looks++; looks == 4 { // no message has been handled so far
					if r.Changed != 1 || r.Waiting != 1 {
						t.Errorf("%s: while the first waits: %s", name, counts(r))
					}
					b.consume(name, (&counted{}).handle)
				}
			}
			r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: name}, plan)
			if err != nil || r.Resolved != 6 || looks < 4 {
				t.Fatalf("%s: %v, %s after %d looks", name, err, counts(r.Report), looks)
			}
		}
	})
}

// A replay continues if another writer locks the database for longer than the replay
// waits.
func TestReplayContinuesAfterABusyDatabase(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	b.fill("payments", 3)
	impatient, err := sql.Open("sqlite", strings.Replace(b.DSN, "busy_timeout(10000)", "busy_timeout(20)", 1))
	kit.OK(t, err)
	defer func() { _ = impatient.Close() }()
	var timeout int
	if err := impatient.QueryRowContext(t.Context(), `PRAGMA busy_timeout`).Scan(&timeout); err != nil || timeout != 20 {
		t.Fatalf("%v, the timeout is %d", err, timeout)
	}
	store, err := quarantine.New(impatient, operate.Config{Schema: b.Config, ReplayToAbsent: true})
	kit.OK(t, err)
	b.consume("payments", (&counted{}).handle)
	var hold sync.Once
	var freed atomic.Bool
	r, err := store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{
		Progress: func(operate.Report) {
			hold.Do(func() {
				tx, err := b.BeginTx(t.Context(), nil) // this takes the lock
				if err != nil {
					t.Error(err)
					return
				}
				time.AfterFunc(500*time.Millisecond, func() {
					freed.Store(true)
					_ = tx.Rollback()
				})
			})
		},
	})
	if err != nil || counts(r.Report) != "finished: 3 of 3 replayed, 3 resolved, 0 failed, 0 waiting" || !freed.Load() {
		t.Fatalf("%v, %s", err, counts(r.Report))
	}
}

func TestReplayStopsOnNewFailure(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fill("payments", 40)
		c := &counted{fail: func(id string) bool { return id == "payments-0012" || id == "payments-0030" }}
		b.consume("payments", c.handle)
		plan := operate.Plan{StopOnFailure: true, Window: 5}
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, plan)
		if !errors.Is(err, operate.ErrReplayStopped) || r.Failed != 1 || r.Changed > 25 {
			t.Fatalf("%v, %s", err, counts(r.Report))
		}
		// The known failure does not stop the replay again, but the next failure does.
		r, err = b.store.Resume(t.Context(), act, r.ID, nil)
		if !errors.Is(err, operate.ErrReplayStopped) || r.Failed != 2 {
			t.Fatalf("%v, %s", err, counts(r.Report))
		}
		if r, err = b.store.Resume(t.Context(), act, r.ID, nil); err != nil || r.Failed != 2 || r.Changed != 40 || c.total() != 40 {
			t.Fatalf("%v, %s, %d calls", err, counts(r.Report), c.total())
		}
	})
}

// Some messages that were replayed before the stop fail after it. When the replay is
// resumed, their cause may be repaired, so they must not stop the replay again.
func TestFailuresAfterAStopDoNotStopTheResumedReplay(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil) // with SQLite, the handler that waits would be the only writer
	b.fill("payments", 20)
	stopped := make(chan struct{})
	var mended atomic.Bool
	b.consume("payments", func(msg *message.Message) error {
		if mended.Load() {
			return nil
		}
		if msg.UUID != "payments-0000" {
			<-stopped
		}
		return errHandler
	})
	plan := operate.Plan{StopOnFailure: true, Window: 2}
	r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, plan)
	close(stopped)
	if !errors.Is(err, operate.ErrReplayStopped) || counts(r.Report) != "stopped: 2 of 20 replayed, 0 resolved, 1 failed, 1 waiting" {
		t.Fatalf("%v, %s", err, counts(r.Report))
	}
	kit.Eventually(t, 20*time.Second, "the other one fails", func() bool {
		r, err = b.store.ReplayOf(t.Context(), r.ID)
		return err == nil && r.Failed == 2
	})
	mended.Store(true)
	r, err = b.store.Resume(t.Context(), act, r.ID, nil)
	if err != nil || counts(r.Report) != "finished: 20 of 20 replayed, 18 resolved, 2 failed, 0 waiting" {
		t.Fatalf("%v, %s", err, counts(r.Report))
	}
}

// If a row cannot store a text, it contains a cleaned form of the text. A Filter with
// the original text must match such a row.
func TestReplayByInvalidText(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		const tenant = "\xff\xfe\x00"
		msg := message.NewMessage("m1", nil)
		msg.Metadata.Set("once_tenant_id", tenant)
		kit.OK(t, b.handle("payments", msg, failing(errHandler)))
		b.consume("payments", (&counted{}).handle)
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Tenant: tenant}, operate.Plan{})
		if err != nil || counts(r.Report) != "finished: 1 of 1 replayed, 1 resolved, 0 failed, 0 waiting" {
			t.Fatalf("%v, %s", err, counts(r.Report))
		}
	})
}

// An extremely high Rate works like no limit.
func TestRateAboveEveryInteger(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	b.fill("payments", 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	began, consuming := time.Now(), false
	r, err := b.store.ReplayMatching(ctx, act, operate.Filter{Consumer: "payments"}, operate.Plan{
		Rate: math.MaxInt, Window: 1,
		Progress: func(operate.Report) {
			if time.Since(began) > time.Second && !consuming { // after this time the rate allows all messages
				consuming = true
				b.consume("payments", (&counted{}).handle)
			}
		},
	})
	if err != nil || r.Resolved != 2 {
		t.Fatalf("%v, %s", err, counts(r.Report))
	}
}
