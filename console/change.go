package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/watermill-once/once/operate"
)

// act is a kind of change. preview counts the messages that run would change.
type act struct {
	Name    string
	action  Action
	Section string `api:"-"` // name of the page that lists the messages
	Title   string // such as "Replay dead letters"
	Button  string `api:"-"` // such as "Replay"
	Warning string // consequence that the operator must know before the change
	Danger  bool

	One, Many string `api:"-"` // singular and plural of the changed things; default to "message" and "messages"

	HasRate, HasPlan bool     // HasRate: the plan can have a rate. HasPlan: it can also have a canary, a window and a stop at failures
	LeftOut          string   // why messages are left out; "" if they are left out because they need force
	Force            string   // what force changes; "" if the act has no force
	filters          []string // names of the filters that select what the act changes; default to those of the page Section
	reasons, states  []string
	preview          func(ctx context.Context, s selection, p operate.Plan) (preview, error)
	run              func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error)
}

type preview struct {
	Total   int
	AtLeast bool
	Groups  []operate.Group
	Skipped []int64
	Notes   []string // what the operator must know before the change
}

type changePage struct {
	Act     act
	Filter  selection
	Preview preview
	Plan    operate.Plan
	Why     string
	Actor   string
	Toggle  string `api:"-"` // URL of the same page, with force switched on or off
	Back    string `api:"-"`

	Groups     []operate.Group // the largest groups of Preview
	MoreGroups int             // number of the other groups
}

// longestWhy is the maximum length of a reason in bytes.
const longestWhy = 500

// request reads the act, the selection and the plan from a query or a form. It fails if one is
// invalid, or the person (actor) may not make the change.
func (c *Console) request(r *http.Request, form url.Values) (a act, s selection, p operate.Plan, actor string, err error) {
	a, ok := c.acts[form.Get("do")]
	if !ok {
		return a, s, p, "", inputError{fmt.Errorf("do is %q, which is not a change that the console can make", form.Get("do"))}
	}
	if actor, err = c.authorize(r, a.action); err != nil {
		return a, s, p, "", err
	}
	if s, err = newSelection(form); err == nil {
		err = s.check(a.filters, a.reasons, a.states)
	}
	if err == nil && s.Empty() {
		err = inputError{errors.New("nothing is selected: select messages, use a filter, or select all")}
	}
	if err == nil {
		p, err = newPlan(form, a)
	}
	return a, s, p, actor, err
}

// A value that the act does not have is an error: without it, the change may be another than the
// caller expects.
func newPlan(form url.Values, a act) (p operate.Plan, err error) {
	for _, field := range []struct {
		name string
		has  bool
		to   *bool
	}{{"force", a.Force != "", &p.Force}, {"stop", a.HasPlan, &p.StopOnFailure}} {
		if *field.to, err = isOn(form, field.name); err != nil {
			return p, err
		}
		if *field.to && !field.has {
			return p, a.without(field.name)
		}
	}
	for _, field := range []struct {
		name string
		has  bool
		to   *int
	}{{"rate", a.HasRate, &p.Rate}, {"canary", a.HasPlan, &p.Canary}, {"window", a.HasPlan, &p.Window}} {
		text := form.Get(field.name)
		if text == "" {
			continue
		}
		if !field.has {
			return p, a.without(field.name)
		}
		if *field.to, err = strconv.Atoi(text); err != nil || *field.to < 0 || *field.to > 1_000_000 {
			return p, inputError{fmt.Errorf("%s %q is not a number from 0 to 1,000,000", field.name, text)}
		}
	}
	return p, nil
}

func (a act) without(name string) error {
	return inputError{fmt.Errorf("%q is no value of %q: leave it out", name, a.Name)}
}

func (c *Console) getChange(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	a, s, p, actor, err := c.request(r, query)
	if err != nil {
		return err
	}
	s.AfterID, s.Limit = 0, 0
	body := changePage{Act: a, Plan: p, Actor: actor, Back: a.Section + "?" + s.values().Encode()}
	if body.Preview, err = a.preview(r.Context(), s, p); err != nil {
		return err
	}
	if a.HasPlan {
		s = oneConsumer(s, body.Preview.Groups)
		if query.Get("rate") == "" && query.Get("canary") == "" && body.Preview.Total > 1 {
			body.Plan.Canary, body.Plan.StopOnFailure = min(10, max(1, body.Preview.Total/10)), true // careful defaults
		}
	}
	largestFirst(body.Preview.Groups)
	body.Groups = body.Preview.Groups[:min(len(body.Preview.Groups), groupRows)]
	body.MoreGroups = len(body.Preview.Groups) - len(body.Groups)
	if len(s.IDs) > 0 {
		body.Back = a.Section
	}
	body.Filter = s
	toggled := s.values()
	toggled.Set("do", a.Name)
	if !p.Force {
		toggled.Set("force", "1")
	}
	body.Toggle = "change?" + toggled.Encode()
	return c.show(w, r, page{Title: a.Title, Template: "change", Section: a.Section, Actor: actor, Body: body})
}

// oneConsumer adds the consumer that all messages have: a replay that names none is one of all
// consumers, beside which no other can start.
func oneConsumer(s selection, groups []operate.Group) selection {
	consumer := ""
	for _, g := range groups {
		for _, name := range g.Consumers {
			if consumer != "" && name != consumer {
				return s
			}
			consumer = name
		}
	}
	if consumer != "" {
		s.Consumer, s.All = consumer, false
	}
	return s
}

// postChange changes no more messages than the form has shown.
func (c *Console) postChange(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return formError(err)
	}
	a, s, p, actor, err := c.request(r, r.PostForm)
	if err != nil {
		return err
	}
	if s.Limit == 0 {
		return inputError{errors.New("the form does not say how many messages it has shown: open the form again")}
	}
	why, err := newWhy(r.PostForm)
	if err != nil {
		return err
	}
	who := operate.Act{Actor: actor, Why: why}
	j := &job{Title: a.Title, Who: who, Back: a.Section, LeftOut: a.LeftOut, lock: a.Section + "/" + s.Consumer}
	s.AfterID = 0
	err = c.jobs.start(j, func(ctx context.Context, progress func(report)) (report, error) {
		return a.run(ctx, who, s, p, progress)
	})
	if err != nil {
		return err
	}
	c.redirectToJob(w, r, j, !a.HasPlan)
	return nil
}

// startPatience is how long the response to a form waits for the first progress of a change with a
// canary, or for the end of another.
const startPatience = 2 * time.Second

// redirectToJob waits for progress, or with toEnd for the end, but no longer than startPatience.
func (c *Console) redirectToJob(w http.ResponseWriter, r *http.Request, j *job, toEnd bool) {
	until := j.moved
	if toEnd {
		until = j.ended
	}
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	select {
	case <-until:
	case <-patience.C:
	case <-r.Context().Done():
	}
	redirect(w, link("job", "id", j.ID))
}

func newWhy(form url.Values) (string, error) {
	why, err := newText(form.Get("why"), "the reason")
	if err == nil && why == "" {
		err = inputError{errors.New("say why: the reason is written to the audit log")}
	}
	return why, err
}

func newText(text, name string) (string, error) {
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case len(text) > longestWhy:
		return "", inputError{fmt.Errorf("%s has %d bytes, more than %d", name, len(text), longestWhy)}
	case !utf8.ValidString(text) || strings.ContainsFunc(text, hidden):
		return "", inputError{fmt.Errorf("%s contains characters that cannot be displayed", name)}
	}
	return text, nil
}

// The error does not contain the text of err, which may quote the form.
func formError(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return err
	}
	return inputError{errors.New("the form cannot be read")}
}

type jobPage struct {
	Job     *job
	State   jobState
	Running bool
	Problem string
	May     buttons
}

func (c *Console) getJob(w http.ResponseWriter, r *http.Request) error {
	j := c.jobs.get(r.URL.Query().Get("id"))
	if j == nil {
		return errNoJob
	}
	state := j.State()
	if id := state.Report.Replay.ID; id > 0 { // the page of the replay shows more, in every process
		redirect(w, link("replay", "id", id))
		return nil
	}
	p := page{Title: j.Title, Template: "job", Section: j.Back, Body: jobPage{
		j, state, state.Running(), state.Problem(), c.buttons(r, Stop),
	}}
	if state.Running() {
		p.Live = 1
	}
	return c.show(w, r, p)
}

func (c *Console) postStop(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return formError(err)
	}
	actor, err := c.authorize(r, Stop)
	if err != nil {
		return err
	}
	if r.PostForm.Has("replay") {
		return c.stopReplay(w, r, actor)
	}
	j := c.jobs.get(r.PostForm.Get("job"))
	if j == nil {
		return errNoJob
	}
	c.config.Logger.Info("Console change is stopped", map[string]any{"change": j.Title, "actor": actor})
	j.stop(actor)
	c.redirectToJob(w, r, j, true)
	return nil
}
