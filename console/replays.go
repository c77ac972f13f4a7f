package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/watermill-once/once/operate"
)

// replaysPage shows the replays in the database, and the latest changes of this process.
type replaysPage struct {
	Replays []operate.Replay
	Next    string
	Jobs    []*job
}

const shownJobs = 20

func (c *Console) getReplays(w http.ResponseWriter, r *http.Request) error {
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

type replayPage struct {
	Replay  operate.Replay
	Outcome bool // whether the outcome of each message is known, as in a replay of the quarantine
	Job     *job // job that runs the replay in this process, or nil
	Problem string
	Chart   string `api:"-"`
	Left    int    // number of messages that are not replayed yet
	Done    int    // number of handled messages, or of replayed messages if Outcome is false
	Rate    string // messages per second that had an outcome, or that were replayed if Outcome is false; or ""
	Rest    string // estimated time until the end, or ""
	Took    string // duration of the finished replay, or ""
	Resume  bool
	May     buttons
}

func (c *Console) getReplay(w http.ResponseWriter, r *http.Request) error {
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
		May: c.buttons(r, replayAction(replay.Source), Stop), Left: max(0, replay.Total-replay.Changed),
	}
	if body.Done = replay.Resolved; !body.Outcome {
		body.Done = replay.Changed
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
	case operate.ReplayRunning:
		p.Live = 1
		ended := replay.Resolved + replay.Failed + replay.Stale
		if !body.Outcome {
			ended = replay.Changed
		}
		if rate := c.paces.add(id, time.Now(), ended); rate > 0 {
			body.Rate = perSecond(rate)
			body.Rest = age(time.Duration(float64(max(0, replay.Total-ended)) / rate * float64(time.Second)))
		}
	case operate.ReplayPaused, operate.ReplayStopped, operate.ReplayAbandoned:
		body.Resume = body.May.May(string(replayAction(replay.Source)))
	}
	if replay.State == operate.ReplayFinished {
		body.Took = age(replay.EndedAt.Sub(replay.StartedAt))
	}
	p.Body = body
	return c.show(w, r, p)
}

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
		resume, reportOf := c.quarantine.Resume, replayReport
		switch replay.Source {
		case operate.SourceDead:
			resume, reportOf = c.letters.Resume, outboxReport
		case operate.SourceSent:
			resume, reportOf = c.sent.Resume, outboxReport
		}
		done, err := resume(ctx, who, id, func(r operate.Report) { progress(reportOf(r)) })
		return reportOf(done.Report), err
	})
	if err != nil {
		return err
	}
	c.redirectToJob(w, r, j, false)
	return nil
}

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

const (
	paceSpan = 15 * time.Second

	mostPaces = 50
)

// Another process may be running the replay that people look at.
type paces struct {
	mu  sync.Mutex
	all map[int64][]pace
}

// ended is the number of messages with an outcome at the time at.
type pace struct {
	at    time.Time
	ended int
}

// The rate is 0 if it is not known yet.
func (p *paces) add(id int64, at time.Time, ended int) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.all[id]
	if n := len(list); n > 0 && ended < list[n-1].ended { // an entry that had failed was replayed again
		list = nil
	}
	for len(list) > 1 && at.Sub(list[1].at) >= paceSpan {
		list = list[1:]
	}
	if len(p.all) >= mostPaces && list == nil {
		p.all = nil
	}
	if p.all == nil {
		p.all = map[int64][]pace{}
	}
	if n := len(list); n == 0 || at.Sub(list[n-1].at) >= time.Second/2 { // many people may watch
		p.all[id] = append(list, pace{at, ended})
	}
	if len(list) == 0 {
		return 0
	}
	return float64(ended-list[0].ended) / max(0.001, at.Sub(list[0].at).Seconds())
}
