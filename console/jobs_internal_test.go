package console

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// until works until its context ends.
func until(ctx context.Context, progress func(report)) (report, error) {
	progress(report{Done: 1})
	<-ctx.Done()
	return report{Done: 2}, ctx.Err()
}

func TestAPanicEndsTheChangeAndNotTheService(t *testing.T) {
	all, logs := newTestJobs(t)
	j := &job{Title: "Test"}
	require.NoError(t, all.start(j, func(_ context.Context, progress func(report)) (report, error) {
		progress(report{Done: 7})
		panic("secret")
	}))
	<-j.ended
	state := j.State()
	assert.False(t, state.Running())
	assert.Equal(t, 7, state.Report.Done)
	assert.Equal(t, "It failed. The log of the service says why.", state.Problem())
	assert.True(t, logs.Has("Console change panicked", "secret"))
}

func TestOnlySomeChangesRunAtATime(t *testing.T) {
	all, _ := newTestJobs(t)
	var running []*job
	for i := range mostJobs {
		j := &job{Title: "Test", Who: operate.Act{Actor: "ann"}, lock: fmt.Sprint(i)}
		require.NoError(t, all.start(j, until))
		running = append(running, j)
		if i == 0 {
			_, same := errors.AsType[busyError](all.start(&job{lock: "0"}, until))
			assert.True(t, same, "the same lock")
		}
	}
	_, many := errors.AsType[busyError](all.start(&job{lock: "other"}, until))
	assert.True(t, many, "too many")
	running[0].stop()
	<-running[0].ended
	assert.True(t, running[0].State().Stopped())
	assert.Equal(t, 2, running[0].State().Report.Done)
	require.NoError(t, all.start(&job{lock: "0"}, until), "the lock is free again")
	all.close()
	for _, j := range all.latest() {
		assert.False(t, j.State().Running(), "close waits for all")
	}
	require.ErrorIs(t, all.start(&job{lock: "new"}, until), errClosed)
}

func TestOldChangesAreForgotten(t *testing.T) {
	all, _ := newTestJobs(t)
	kept := &job{lock: "running"}
	require.NoError(t, all.start(kept, until))
	var last *job
	for range keptJobs + 10 {
		last = &job{}
		require.NoError(t, all.start(last, func(context.Context, func(report)) (report, error) { return report{}, nil }))
		<-last.ended
	}
	assert.LessOrEqual(t, len(all.latest()), keptJobs)
	assert.Same(t, last, all.get(last.ID))
	assert.Same(t, kept, all.get(kept.ID), "a running change is not forgotten")
	assert.Nil(t, all.get("unknown"))
}
