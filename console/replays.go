package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
)

// replaysPage shows the replays in the database, and the latest changes that this
// process has made.
type replaysPage struct {
	Replays []poison.Replay
	Next    string
	Jobs    []*job
}

// shownJobs is the maximum number of changes of this process that the page shows.
const shownJobs = 20

func (c *Console) getReplays(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	var before int64
	if text := r.URL.Query().Get("before"); text != "" {
		var err error
		if before, err = strconv.ParseInt(text, 10, 64); err != nil || before < 0 {
			return inputError{fmt.Errorf("before %q is not a number", text)}
		}
	}
	list, err := c.quarantine.Replays(r.Context(), before)
	if err != nil {
		return err
	}
	body := replaysPage{Replays: list, Jobs: c.jobs.latest()}
	body.Jobs = body.Jobs[:min(len(body.Jobs), shownJobs)]
	if len(list) == rows {
		body.Next = link("replays", "before", list[rows-1].ID)
	}
	return c.show(w, r, page{Title: "Replays", Template: "replays", Section: "replays", Body: body})
}

// replayPage shows one replay.
type replayPage struct {
	Replay  poison.Replay
	Outcome bool // whether the outcome of each message is known, as in a replay of the quarantine
	Job     *job // job that runs the replay in this process, or nil
	Problem string
	Chart   string
	Left    int    // number of messages that are not replayed yet
	Done    int    // number of handled messages, or of replayed messages if Outcome is false
	Rate    string // messages per second that had an outcome, or that were replayed if Outcome is false; or ""
	Rest    string // estimated time until the end, or ""
	Took    string // duration of the finished replay, or ""
	Resume  bool
	May     buttons
}

func (c *Console) getReplay(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	replay, err := c.quarantine.ReplayOf(r.Context(), id)
	if err != nil {
		return err
	}
	body := replayPage{
		Replay: replay, Outcome: replay.Source == operate.SourceQuarantine,
		May: c.buttons(r, replayAction(replay.Source), Stop), Left: max(0, replay.Total-replay.Replayed),
	}
	if body.Done = replay.Resolved; !body.Outcome {
		body.Done = replay.Replayed
	}
	p := page{Title: fmt.Sprintf("Replay %d", id), Template: "replay", Section: "replays", Charts: true}
	if j := c.jobs.replaying(id); j != nil {
		state := j.State()
		body.Chart, body.Problem = state.Chart, state.Problem()
		if state.Running() {
			body.Job = j
		}
	}
	switch replay.State {
	case poison.ReplayRunning:
		p.Live = 1
		ended := replay.Resolved + replay.Failed + replay.Stale
		if !body.Outcome {
			ended = replay.Replayed
		}
		if rate := c.paces.add(id, time.Now(), ended); rate > 0 {
			body.Rate = perSecond(rate)
			body.Rest = age(time.Duration(float64(max(0, replay.Total-ended)) / rate * float64(time.Second)))
		}
	case poison.ReplayPaused, poison.ReplayStopped, poison.ReplayAbandoned:
		body.Resume = body.May.May(string(replayAction(replay.Source)))
	}
	if replay.State == poison.ReplayFinished {
		body.Took = age(replay.EndedAt.Sub(replay.StartedAt))
	}
	p.Body = body
	return c.show(w, r, p)
}

// replayAction returns the action that is needed to resume a replay from the given
// source.
func replayAction(source string) Action {
	switch source {
	case operate.SourceDead:
		return ReplayDead
	case operate.SourceSent:
		return ReplaySent
	default:
		return ReplayQuarantined
	}
}

// postResume continues a replay in this process.
func (c *Console) postResume(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return formError(err)
	}
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	id, err := strconv.ParseInt(r.PostForm.Get("id"), 10, 64)
	if err != nil {
		return inputError{errors.New("id is not a number")}
	}
	why, err := newWhy(r.PostForm)
	if err != nil {
		return err
	}
	replay, readErr := c.quarantine.ReplayOf(r.Context(), id)
	actor, err := c.authorize(r, replayAction(replay.Source))
	if err != nil {
		return err
	}
	if readErr != nil { // checked late, so that others do not learn which replays exist
		return readErr
	}
	who := operate.Act{Actor: actor, Why: why}
	j := &job{Title: fmt.Sprintf("Resume replay %d", id), Who: who, Back: "replays", lock: replay.Source + "/" + replay.Consumer}
	err = c.jobs.start(j, func(ctx context.Context, progress func(report)) (report, error) {
		switch replay.Source {
		case operate.SourceDead:
			done, err := c.letters.Resume(ctx, who, id, func(r operate.Report) { progress(outboxReport(r)) })
			return outboxReport(done), err
		case operate.SourceSent:
			done, err := c.sent.Resume(ctx, who, id, func(r operate.Report) { progress(outboxReport(r)) })
			return outboxReport(done), err
		default:
			done, err := c.quarantine.Resume(ctx, who, id, func(r operate.Report) { progress(replayReport(r)) })
			return replayReport(done.Report), err
		}
	})
	if err != nil {
		return err
	}
	c.redirectToJob(w, r, j, false)
	return nil
}

// stopReplay stops a replay. Any process may run this replay.
func (c *Console) stopReplay(w http.ResponseWriter, r *http.Request, actor string) error {
	id, err := strconv.ParseInt(r.PostForm.Get("replay"), 10, 64)
	if err != nil {
		return inputError{errors.New("replay is not a number")}
	}
	why, err := newWhy(r.PostForm)
	if err != nil {
		return err
	}
	if _, err := c.quarantine.StopReplay(r.Context(), operate.Act{Actor: actor, Why: why}, id); err != nil {
		return err
	}
	redirect(w, fmt.Sprintf("replay?id=%d", id))
	return nil
}
