package failpoints

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
)

// Operations of an operator. Each is repeated until nothing is left to do.
const (
	replayDead  = "replay dead letters"
	discardDead = "discard dead letters"
	releaseDead = "release a key"
	retryNow    = "retry pending messages"
	cancelNow   = "cancel pending messages"

	pauseAndResume = "pause a topic, and resume it"
	pauseConsumer  = "pause a consumer, and resume it"
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

var act = operate.Act{Actor: "test", Why: "to be killed meanwhile"}

func (a *actor) operate(ctx context.Context) error {
	if a.Operate == "" {
		return nil
	}
	letters, err := dead.New(a.db, operate.Config{Schema: a.schema(), ReplayLease: lease})
	if err != nil {
		return err
	}
	waiting, err := outbox.New(a.db, operate.Config{Schema: a.schema()})
	if err != nil {
		return err
	}
	entries, err := quarantine.New(a.db, operate.Config{Schema: a.schema(), ReplayLease: lease, ReplayToAbsent: true})
	if err != nil {
		return err
	}
	messages, err := parked.New(a.db, operate.Config{Schema: a.schema()})
	if err != nil {
		return err
	}
	var pause pauseOnce
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		switch a.Operate {
		case runParked:
			_, err = messages.RunNowMatching(ctx, act, operate.Filter{All: true}, operate.Plan{})
		case endParked:
			_, err = messages.CancelMatching(ctx, act, operate.Filter{All: true}, operate.Plan{})
		case dropParked:
			_, err = messages.DiscardMatching(ctx, act, operate.Filter{All: true}, operate.Plan{})
		case retire:
			err = messages.RemoveConsumer(ctx, act, "gone", orders, parked.RemoveOptions{})
			if errors.Is(err, parked.ErrConsumerNotFound) {
				err = nil
			}
		case replayDead:
			err = a.replayDead(ctx, letters, entries)
		case discardDead:
			_, err = letters.DiscardMatching(ctx, act, operate.Filter{All: true})
		case releaseDead:
			err = letters.Release(ctx, act, key)
			if errors.Is(err, dead.ErrNotBlocked) {
				err = nil
			}
		case retryNow:
			_, err = waiting.RetryMatching(ctx, act, operate.Filter{State: outbox.BackingOff}, operate.Plan{})
		case cancelNow:
			_, err = waiting.CancelMatching(ctx, act, operate.Filter{State: outbox.BackingOff}, operate.Plan{})
		case pauseAndResume:
			scope := outbox.Scope{Topic: orders}
			if err = waiting.Resume(ctx, act, scope); errors.Is(err, outbox.ErrNotPaused) {
				err = waiting.Pause(ctx, act, scope)
			}
		case pauseConsumer:
			err = pause.once(ctx, messages)
		case replayMany:
			err = a.replayMany(ctx, entries)
		case stopMany:
			err = a.stopMany(ctx, entries)
		case importAll:
			_, _, err = entries.Import(ctx, act, strings.NewReader(a.Export))
		default:
			err = a.toEach(ctx, entries)
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

// pauseOnce pauses the consumer for so long that every instance sees it, and resumes it.
type pauseOnce struct {
	paused  time.Time
	resumed bool
}

func (p *pauseOnce) once(ctx context.Context, messages *parked.Messages) error {
	switch {
	case p.resumed:
	case p.paused.IsZero():
		_, err := messages.PauseConsumer(ctx, act, orders, orders)
		if errors.Is(err, parked.ErrConsumerNotFound) { // it has not subscribed yet
			return nil
		}
		p.paused = time.Now()
		return err
	case time.Since(p.paused) > 3*time.Second:
		_, err := messages.ResumeConsumer(ctx, act, orders, orders)
		p.resumed = err == nil
		return err
	}
	return nil
}

// toEach runs an operation on each entry of the quarantine.
func (a *actor) toEach(ctx context.Context, entries *quarantine.Entries) error {
	page, err := entries.List(ctx, operate.Filter{})
	if err != nil || len(page.Rows) == 0 {
		return err
	}
	ids := make([]int64, len(page.Rows))
	for i, e := range page.Rows {
		ids[i] = e.ID
	}
	switch a.Operate {
	case replay:
		return entries.Replay(ctx, act, ids...)
	case discard:
		return entries.Discard(ctx, act, ids...)
	}
	for _, e := range page.Rows {
		_, err := entries.Edit(ctx, act, e.ID, func(msg *message.Message) error {
			msg.UUID = e.MessageID + "-edited"
			return nil
		}, quarantine.EditOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// stopMany stops the replay that another process has begun, and then resumes it.
func (a *actor) stopMany(ctx context.Context, entries *quarantine.Entries) error {
	begun, err := entries.Replays(ctx, 0)
	if err == nil && len(begun) > 0 && begun[0].State != operate.ReplayStopped && begun[0].State != operate.ReplayFinished {
		_, err = entries.StopReplay(ctx, act, begun[0].ID)
	}
	if err != nil {
		return err
	}
	return a.replayMany(ctx, entries)
}

// replayDead replays dead letters. It resumes a replay whose process was killed.
func (a *actor) replayDead(ctx context.Context, letters *dead.Letters, entries *quarantine.Entries) error {
	begun, err := entries.Replays(ctx, 0)
	if err != nil {
		return err
	}
	if len(begun) == 0 || begun[0].State == operate.ReplayFinished {
		_, err = letters.ReplayMatching(ctx, act, operate.Filter{All: true}, operate.Plan{Force: true})
		return err
	}
	_, err = letters.Resume(ctx, act, begun[0].ID, nil)
	if errors.Is(err, operate.ErrReplayRunning) {
		return nil
	}
	return err
}

// replayMany starts a replay, or resumes an existing one.
func (a *actor) replayMany(ctx context.Context, entries *quarantine.Entries) error {
	begun, err := entries.Replays(ctx, 0)
	switch {
	case err != nil:
		return err
	case len(begun) == 0:
		_, err = entries.ReplayMatching(ctx, act, operate.Filter{All: true}, operate.Plan{Force: true})
		return err
	case begun[0].State == operate.ReplayFinished:
		return nil
	}
	_, err = entries.Resume(ctx, act, begun[0].ID, nil)
	if errors.Is(err, operate.ErrReplayRunning) { // another process has the lease of the replay; wait until it ends
		return nil
	}
	return err
}
