package console

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/watermill-once/once/journey"
)

// lifePage asks for messages, and shows what happened to them in the order of time.
type lifePage struct {
	Message, AggregateType, Aggregate, Tenant string
	Causes                                    bool

	Asked    bool
	Messages []life
	Notes    []string
}

// life is a message with its events.
type life struct {
	journey.Message

	Events []lifeEvent
}

// lifeEvent is an event with the page of its row, or "".
type lifeEvent struct {
	journey.Event

	Link string
}

// longestLives is how many messages the page shows.
const longestLives = 50

func (c *Console) getLife(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	query := r.URL.Query()
	if _, err := newSelection(query); err != nil { // names texts that no message can have
		return err
	}
	text := func(name string) string { return strings.TrimSpace(query.Get(name)) }
	body := lifePage{
		Message: text("message"), AggregateType: text("type"), Aggregate: text("aggregate"), Tenant: text("tenant"),
		Causes: query.Get("causes") != "",
	}
	named := 0
	for _, name := range []string{body.Message, body.Aggregate, body.Tenant} {
		if name != "" {
			named++
		}
	}
	switch {
	case named > 1:
		return inputError{errors.New("message, aggregate and tenant: fill in one of them")}
	case named == 0 && body.AggregateType != "":
		return inputError{errors.New("aggregate is empty: an aggregate type alone would match too many messages")}
	case named == 1:
		answer, err := c.journeys.Find(r.Context(), journey.Query{
			MessageID: body.Message, AggregateType: body.AggregateType, AggregateID: body.Aggregate, Tenant: body.Tenant,
			Causes: body.Causes, Limit: longestLives,
		})
		if err != nil {
			return err
		}
		body.Asked, body.Notes = true, answer.Notes
		for _, m := range answer.Messages {
			body.Messages = append(body.Messages, newLife(m))
		}
	}
	title := "Life of a message"
	if body.Message != "" {
		title = "Life of " + visible(body.Message)
	}
	return c.show(w, r, page{Title: title, Template: "life", Section: "life", Body: body})
}

func newLife(m journey.Message) life {
	l := life{Message: m}
	for _, e := range m.Events {
		l.Events = append(l.Events, lifeEvent{e, pageOf(e)})
	}
	return l
}

// pageOf returns the page of the row of an event. The row may no longer be in its
// table.
func pageOf(e journey.Event) string {
	pages := map[journey.Place]string{
		journey.Outbox: "message", journey.DeadLetters: "letter", journey.SentLog: "copy", journey.Parked: "parked-message",
	}
	name, ok := pages[e.Place]
	if !ok || e.Row == 0 {
		return ""
	}
	return fmt.Sprintf("%s?id=%d", name, e.Row)
}
