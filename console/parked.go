package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
)

var parkedStates = []string{
	parked.Waiting, parked.Held, parked.Quarantined, parked.Resolved, parked.Discarded,
}

type parkedPage struct {
	Filter   selection
	States   []string
	Messages []parked.Message
	Next     string // URL of the next page
	May      buttons
}

func (c *Console) getParked(w http.ResponseWriter, r *http.Request) error {
	s, err := selected(r, "parked", nil, parkedStates)
	if err != nil {
		return err
	}
	body := parkedPage{Filter: s, States: parkedStates, May: c.buttons(r, RunParked, CancelParked, DiscardParked)}
	list, err := c.parked.List(r.Context(), s.filter("parked"))
	if err != nil {
		return err
	}
	body.Messages = list.Rows
	if list.Next > 0 {
		body.Next = nextPage("parked", s, list.Next)
	}
	return c.show(w, r, page{Title: "Parked messages", Template: "parked", Section: "parked", Body: body})
}

type parkedMessagePage struct {
	Message parked.Message
	Content content
	May     buttons
}

func (c *Console) getParkedMessage(w http.ResponseWriter, r *http.Request) error {
	id, m, err := named(r, c.parked.Get)
	if err != nil {
		return err
	}
	body := parkedMessagePage{Message: m}
	if m.State == parked.Waiting || m.State == parked.Held {
		body.May = c.buttons(r, RunParked, CancelParked, DiscardParked)
	}
	if m.State == parked.Held {
		delete(body.May, RunParked) // a held message is handled after the earlier messages of its key
	}
	if m.Message == nil {
		body.Content = content{Problem: "The stored message is damaged: " + fmt.Sprint(m.MessageErr)}
	} else {
		body.Content = c.content(r, "parked", id, m.Topic, m.Message)
	}
	return c.show(w, r, page{Title: fmt.Sprintf("Parked message %d", id), Template: "parkedmessage", Section: "parked", Body: body})
}

// leftOutParked says why a change leaves out some of the parked messages.
const leftOutParked = "a consumer is handling or has handled them, or somebody else is changing them"

func (c *Console) runParked() act {
	return act{
		Name: "run-parked", action: RunParked, Section: "parked", Title: "Run parked messages now", Button: "Run now",
		HasRate: true, states: []string{parked.Waiting}, LeftOut: leftOutParked,
		Warning: "Messages that wait for a later time are made due now. Their attempts are not reset, so the next failure of a " +
			"message can put it into quarantine. Fix the cause first.",
		preview: c.previewParked(parked.RunNow),
		run:     c.changeParked(c.parked.RunNowMatching),
	}
}

func (c *Console) cancelParked() act {
	return act{
		Name: "cancel-parked", action: CancelParked, Section: "parked", Title: "Cancel parked messages", Button: "Cancel",
		HasRate: true, Danger: true, states: []string{parked.Waiting, parked.Held}, LeftOut: leftOutParked,
		Warning: "Cancelled messages go into quarantine, where you can replay, edit or discard them. " +
			"Messages that wait for them run.",
		preview: c.previewParked(parked.Cancel),
		run:     c.changeParked(c.parked.CancelMatching),
	}
}

func (c *Console) discardParked() act {
	return act{
		Name: "discard-parked", action: DiscardParked, Section: "parked", Title: "Discard parked messages", Button: "Discard for good",
		HasRate: true, Danger: true, states: []string{parked.Waiting, parked.Held}, LeftOut: leftOutParked,
		Warning: "The messages are never handled, and neither are late copies of them. Messages that wait for them run.",
		preview: c.previewParked(parked.Discard),
		run:     c.changeParked(c.parked.DiscardMatching),
	}
}

func (c *Console) previewParked(do parked.Action) func(context.Context, selection, operate.Plan) (preview, error) {
	return func(ctx context.Context, s selection, _ operate.Plan) (preview, error) {
		dry, err := c.parked.DryRun(ctx, do, s.filter("parked"))
		return preview{Total: dry.Changed, Skipped: slices.Concat(dry.Skipped, dry.Handled)}, err
	}
}

func (c *Console) changeParked(
	change func(context.Context, operate.Act, operate.Filter, operate.Plan) (operate.Report, error),
) func(context.Context, operate.Act, selection, operate.Plan, func(report)) (report, error) {
	return func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error) {
		p.Progress = func(r operate.Report) { progress(changeReport(s, r)) }
		done, err := change(ctx, who, s.filter("parked"), p)
		return changeReport(s, done), err
	}
}

type consumersPage struct {
	Consumers     []parked.Consumer
	Pause, Resume bool // whether the page shows these buttons
}

func (c *Console) getConsumers(w http.ResponseWriter, r *http.Request) error {
	all, err := c.parked.Consumers(r.Context())
	if err != nil {
		return err
	}
	return c.show(w, r, page{
		Title: "Consumers", Template: "consumers", Section: "consumers", Live: liveSeconds, Body: consumersPage{
			all, c.may(r, PauseConsumer), c.may(r, ResumeConsumer),
		},
	})
}

func (c *Console) pauseConsumer() act {
	return act{
		Name: "pause-consumer", action: PauseConsumer, Section: "consumers", Title: "Pause a consumer", Button: "Pause",
		One: "topic of the consumer", Many: "topics of the consumer", filters: []string{"consumer", "topic"},
		Warning: "No instance starts a message of this consumer until somebody resumes it. Handlers that run finish. " +
			"New messages stay in the broker, and parked and replayed messages stay in the table. No attempts are counted.",
		preview: c.previewPause(func(p *parked.Pause) bool { return p == nil || p.Breaker }),
		run: func(ctx context.Context, who operate.Act, s selection, _ operate.Plan, _ func(report)) (report, error) {
			topics, err := c.parked.PauseConsumer(ctx, who, s.Consumer, s.Topic)
			return report{Total: s.Limit, Done: len(topics)}, err
		},
	}
}

func (c *Console) resumeConsumer() act {
	return act{
		Name: "resume-consumer", action: ResumeConsumer, Section: "consumers", Title: "Resume a consumer", Button: "Resume",
		One: "topic of the consumer", Many: "topics of the consumer", filters: []string{"consumer", "topic"},
		Warning: "All instances handle the messages of this consumer again, within a second. " +
			"The waiting messages are handled as fast as the instances can.",
		preview: c.previewPause(func(p *parked.Pause) bool { return p != nil }),
		run: func(ctx context.Context, who operate.Act, s selection, _ operate.Plan, _ func(report)) (report, error) {
			topics, err := c.parked.ResumeConsumer(ctx, who, s.Consumer, s.Topic)
			return report{Total: s.Limit, Done: len(topics)}, err
		},
	}
}

// previewPause counts topics. changes reports whether the act changes a topic with this pause, or nil.
func (c *Console) previewPause(changes func(*parked.Pause) bool) func(context.Context, selection, operate.Plan) (preview, error) {
	return func(ctx context.Context, s selection, _ operate.Plan) (p preview, err error) {
		if s.Consumer == "" {
			return p, inputError{errors.New("consumer is empty: select the consumer")}
		}
		all, err := c.parked.Consumers(ctx)
		for _, consumer := range all {
			if consumer.Name == s.Consumer && (s.Topic == "" || s.Topic == consumer.Topic) && changes(consumer.Pause) {
				p.Total++
			}
		}
		return p, err
	}
}

func (c *Console) pausedNotes(ctx context.Context, groups []operate.Group) (notes []string, err error) {
	all, err := c.parked.Consumers(ctx)
	for _, consumer := range all {
		replayed := func(g operate.Group) bool { return slices.Contains(g.Consumers, consumer.Name) }
		if consumer.Pause != nil && slices.ContainsFunc(groups, replayed) {
			notes = append(notes, fmt.Sprintf("Consumer %q of topic %q is paused. Its replayed messages wait until it is resumed.",
				consumer.Name, consumer.Topic))
		}
	}
	return notes, err
}
