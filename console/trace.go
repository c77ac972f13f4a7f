package console

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/watermill-once/once/operate/trace"
)

// tracePage shows the events of the messages that were found in chronological order.
type tracePage struct {
	Message, AggregateType, Aggregate, Tenant string
	Causes                                    bool

	Asked    bool
	Messages []traced
	Notes    []string
}

type traced struct {
	trace.Message

	Events []tracedEvent
}

// Link is the page that shows the row of the event, or "".
type tracedEvent struct {
	trace.Event

	Link string
}

// maxTraced is the maximum number of messages that the page shows.
const maxTraced = 50

func (c *Console) getTrace(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	causes, err := isOn(query, "causes")
	if err != nil {
		return err
	}
	body := tracePage{Causes: causes}
	for name, to := range map[string]*string{
		"message": &body.Message, "type": &body.AggregateType, "aggregate": &body.Aggregate, "tenant": &body.Tenant,
	} {
		if *to, err = formValue(query, name); err != nil {
			return err
		}
	}
	named := 0
	for _, text := range []string{body.Message, body.Aggregate, body.Tenant} {
		if text != "" {
			named++
		}
	}
	switch {
	case named > 1:
		return inputError{errors.New("enter a message id, an aggregate id or a tenant, and only one of them")}
	case named == 0 && body.AggregateType != "":
		return inputError{errors.New("aggregate is empty: an aggregate type alone would match too many messages")}
	case named == 1:
		answer, err := c.finder.Find(r.Context(), trace.Query{
			MessageID: body.Message, AggregateType: body.AggregateType, AggregateID: body.Aggregate, Tenant: body.Tenant,
			Causes: body.Causes, Limit: maxTraced,
		})
		if err != nil {
			return err
		}
		body.Asked, body.Notes = true, answer.Notes
		for _, m := range answer.Messages {
			body.Messages = append(body.Messages, newTraced(m))
		}
	}
	title := "Trace of a message"
	if body.Message != "" {
		title = "Trace of " + name(body.Message)
	}
	return c.show(w, r, page{Title: title, Template: "trace", Section: "trace", Body: body})
}

func newTraced(m trace.Message) traced {
	l := traced{Message: m}
	for _, e := range m.Events {
		l.Events = append(l.Events, tracedEvent{e, pageOf(e)})
	}
	return l
}

// The row may no longer be in its table.
func pageOf(e trace.Event) string {
	pages := map[trace.Place]string{
		trace.Outbox: "message", trace.DeadLetters: "letter", trace.SentLog: "copy", trace.Parked: "parked-message",
	}
	name, ok := pages[e.Place]
	if !ok || e.Row == 0 {
		return ""
	}
	return fmt.Sprintf("%s?id=%d", name, e.Row)
}
