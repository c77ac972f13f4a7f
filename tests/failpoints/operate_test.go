package failpoints

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
)

// Operations of an operator. Each is repeated until nothing is left to do.
const (
	replayDead  = "replay dead letters"
	discardDead = "discard dead letters"
	releaseDead = "release a key"
	retryNow    = "retry pending messages"
	cancelNow   = "cancel pending messages"

	pauseAndResume = "pause a topic, and resume it"
	runParked      = "run parked messages"
	endParked      = "cancel parked messages"
	dropParked     = "discard parked messages"
	retire         = "remove a consumer"
	replay         = "replay"
	replayMany     = "replay many"
	stopMany       = "stop a replay"
	discard        = "discard"
	edit           = "edit"
	importAll      = "import"
)

var act = poison.Act{Actor: "test", Why: "to be killed meanwhile"}

func (a *actor) operate(ctx context.Context) error {
	if a.Operate == "" {
		return nil
	}
	letters, err := deadletter.New(a.db, deadletter.Config{Schema: a.schema(), ReplayLease: lease})
	if err != nil {
		return err
	}
	waiting, err := pending.New(a.db, pending.Config{Schema: a.schema()})
	if err != nil {
		return err
	}
	quarantine, err := poison.New(a.db, poison.Config{Schema: a.schema(), ReplayLease: lease, ReplayToAbsent: true})
	if err != nil {
		return err
	}
	messages, err := parked.New(a.db, parked.Config{Schema: a.schema()})
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		switch a.Operate {
		case runParked:
			_, err = messages.RunNowMatching(ctx, act, parked.Filter{All: true}, parked.Plan{})
		case endParked:
			_, err = messages.CancelMatching(ctx, act, parked.Filter{All: true}, parked.Plan{})
		case dropParked:
			_, err = messages.DiscardMatching(ctx, act, parked.Filter{All: true}, parked.Plan{})
		case retire:
			err = messages.RemoveConsumer(ctx, act, "gone", orders, parked.RemoveOptions{})
			if errors.Is(err, parked.ErrConsumerNotFound) {
				err = nil
			}
		case replayDead:
			err = a.replayDead(ctx, letters, quarantine)
		case discardDead:
			_, err = letters.DiscardMatching(ctx, act, deadletter.Filter{All: true})
		case releaseDead:
			err = letters.Release(ctx, act, key)
			if errors.Is(err, deadletter.ErrNotBlocked) {
				err = nil
			}
		case retryNow:
			_, err = waiting.RetryMatching(ctx, act, pending.Filter{State: pending.BackingOff}, pending.Plan{})
		case cancelNow:
			_, err = waiting.CancelMatching(ctx, act, pending.Filter{State: pending.BackingOff}, pending.Plan{})
		case pauseAndResume:
			scope := pending.Scope{Topic: orders}
			if err = waiting.Resume(ctx, act, scope); errors.Is(err, pending.ErrNotPaused) {
				err = waiting.Pause(ctx, act, scope)
			}
		case replayMany:
			err = a.replayMany(ctx, quarantine)
		case stopMany:
			err = a.stopMany(ctx, quarantine)
		case importAll:
			_, _, err = quarantine.Import(ctx, act, strings.NewReader(a.Export))
		default:
			err = a.toEach(ctx, quarantine)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// toEach runs an operation on each entry of the quarantine.
func (a *actor) toEach(ctx context.Context, quarantine *poison.Quarantine) error {
	page, err := quarantine.List(ctx, poison.Filter{})
	if err != nil || len(page.Entries) == 0 {
		return err
	}
	ids := make([]int64, len(page.Entries))
	for i, e := range page.Entries {
		ids[i] = e.ID
	}
	switch a.Operate {
	case replay:
		return quarantine.Replay(ctx, act, ids...)
	case discard:
		return quarantine.Discard(ctx, act, ids...)
	}
	for _, e := range page.Entries {
		_, err := quarantine.Edit(ctx, act, e.ID, func(msg *message.Message) error {
			msg.UUID = e.MessageID + "-edited"
			return nil
		}, poison.EditOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// stopMany stops the replay that another process has begun, and then resumes it.
func (a *actor) stopMany(ctx context.Context, quarantine *poison.Quarantine) error {
	begun, err := quarantine.Replays(ctx, 0)
	if err == nil && len(begun) > 0 && begun[0].State != poison.ReplayStopped && begun[0].State != poison.ReplayFinished {
		_, err = quarantine.StopReplay(ctx, act, begun[0].ID)
	}
	if err != nil {
		return err
	}
	return a.replayMany(ctx, quarantine)
}

// replayDead replays dead letters. It resumes a replay whose process was killed.
func (a *actor) replayDead(ctx context.Context, letters *deadletter.Letters, quarantine *poison.Quarantine) error {
	begun, err := quarantine.Replays(ctx, 0)
	if err != nil {
		return err
	}
	if len(begun) == 0 || begun[0].State == poison.ReplayFinished {
		_, err = letters.ReplayMatching(ctx, act, deadletter.Filter{All: true}, deadletter.Plan{Force: true})
		return err
	}
	_, err = letters.Resume(ctx, act, begun[0].ID, nil)
	if errors.Is(err, poison.ErrReplayRunning) {
		return nil
	}
	return err
}

// replayMany starts a replay, or resumes an existing one.
func (a *actor) replayMany(ctx context.Context, quarantine *poison.Quarantine) error {
	begun, err := quarantine.Replays(ctx, 0)
	switch {
	case err != nil:
		return err
	case len(begun) == 0:
		_, err = quarantine.ReplayMatching(ctx, act, poison.Filter{All: true}, poison.Plan{Force: true})
		return err
	case begun[0].State == poison.ReplayFinished:
		return nil
	}
	_, err = quarantine.Resume(ctx, act, begun[0].ID, nil)
	if errors.Is(err, poison.ErrReplayRunning) { // another process has the lease of the replay; wait until it ends
		return nil
	}
	return err
}
