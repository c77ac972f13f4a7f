package console

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/watermill-once/once/journey"
)

// lifePage contains a form to search for messages. It shows the events of the messages
// that were found, in chronological order.
type lifePage struct {
	Message, AggregateType, Aggregate, Tenant string
	Causes                                    bool

	Asked    bool
	Messages []life
	Notes    []string
}

// life contains a message and its events.
type life struct {
	journey.Message

	Events []lifeEvent
}

// lifeEvent is an event of a message. The field Link is the URL of the page that shows
// the row of the event, or "".
type lifeEvent struct {
	journey.Event

	Link string
}

// longestLives is the maximum number of messages that the page shows.
const longestLives = 50

func (c *Console) getLife(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	query := r.URL.Query()
	if _, err := newSelection(query); err != nil { // returns an error for texts that no message can have
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
		return inputError{errors.New("enter a message id, an aggregate id or a tenant, and only one of them")}
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

// pageOf returns the URL of the page that shows the row of an event, or "" if there is
// no such page. The row may no longer be in its table.
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
