package console

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/operate"
)

func newTestJobs(t *testing.T) (*jobs, *testkit.Logs) {
	t.Helper()
	logs := &testkit.Logs{}
	all := newJobs(logs)
	t.Cleanup(all.close)
	return all, logs
}

// untilStopped is a change that runs until its context ends.
func untilStopped(ctx context.Context, progress func(report)) (report, error) {
	progress(report{Done: 1})
	<-ctx.Done()
	return report{Done: 2}, ctx.Err()
}

func TestAPanicEndsTheChangeAndNotTheService(t *testing.T) {
	all, logs := newTestJobs(t)
	j := &job{Title: "Test"}
	err := all.start(j, func(_ context.Context, progress func(report)) (report, error) {
		progress(report{Done: 7})
		panic("secret")
	})
	if err != nil {
		t.Fatal(err)
	}
	<-j.ended
	state := j.State()
	if state.Running() {
		t.Error("state.Running returned true")
	}
	if state.Report.Done != 7 {
		t.Errorf("state.Report.Done is %d, want 7", state.Report.Done)
	}
	if got, want := state.Problem(), "It failed. The log of the service says why."; got != want {
		t.Errorf("state.Problem is %q, want %q", got, want)
	}
	if !logs.Has("Console change panicked", "secret") {
		t.Error(`logs.Has("Console change panicked", "secret") returned false`)
	}
}

func TestOnlySomeChangesRunAtATime(t *testing.T) {
	all, _ := newTestJobs(t)
	var running []*job
	for i := range mostJobs {
		j := &job{Title: "Test", Who: operate.Act{Actor: "ann"}, lock: fmt.Sprint(i)}
		if err := all.start(j, untilStopped); err != nil {
			t.Fatal(err)
		}
		running = append(running, j)
		if i == 0 {
			_, same := errors.AsType[busyError](all.start(&job{lock: "0"}, untilStopped))
			if !same {
				t.Error("same is false: the same lock")
			}
		}
	}
	_, many := errors.AsType[busyError](all.start(&job{lock: "other"}, untilStopped))
	if !many {
		t.Error("many is false: too many")
	}
	running[0].stop()
	<-running[0].ended
	if !running[0].State().Stopped() {
		t.Error("running[0].State.Stopped returned false")
	}
	if got := running[0].State().Report.Done; got != 2 {
		t.Errorf("running[0].State().Report.Done is %d, want 2", got)
	}
	if err := all.start(&job{lock: "0"}, untilStopped); err != nil {
		t.Fatalf("%v: the lock is free again", err)
	}
	all.close()
	for _, j := range all.latest() {
		if j.State().Running() {
			t.Error("j.State.Running returned true: close waits for all")
		}
	}
	if err := all.start(&job{lock: "new"}, untilStopped); !errors.Is(err, errClosed) {
		t.Fatalf("start: got %v, want errClosed", err)
	}
}

func TestOldChangesAreForgotten(t *testing.T) {
	all, _ := newTestJobs(t)
	kept := &job{lock: "running"}
	if err := all.start(kept, untilStopped); err != nil {
		t.Fatal(err)
	}
	var last *job
	for range keptJobs + 10 {
		last = &job{}
		if err := all.start(last, func(context.Context, func(report)) (report, error) { return report{}, nil }); err != nil {
			t.Fatal(err)
		}
		<-last.ended
	}
	if got := len(all.latest()); got > keptJobs {
		t.Errorf("len(all.latest) is %d, want at most %d", got, keptJobs)
	}
	if got := all.get(last.ID); got != last {
		t.Errorf("all.get(last.ID) is %p, want %p", got, last)
	}
	if got := all.get(kept.ID); got != kept {
		t.Errorf("all.get(kept.ID) is %p, want %p: a running change is not forgotten", got, kept)
	}
	if got := all.get("unknown"); got != nil {
		t.Errorf(`all.get("unknown") is %+v, want nil`, got)
	}
}
