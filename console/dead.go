package console

import (
	"fmt"
	"net/http"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/operate"
)

var deadReasons = []string{
	deadletter.ReasonExhausted, deadletter.ReasonUnacceptable, deadletter.ReasonMalformed, deadletter.ReasonInvalid,
	deadletter.ReasonCancelled,
}

// rows is the length of a list.
const rows = 100

// deadPage is the dead letters: groups first, and those that match the filter.
type deadPage struct {
	Filter  selection
	Reasons []string
	Groups  []groupRow
	More    string // URL of more groups
	Total   int
	Letters []deadletter.Letter
	Next    string
	May     buttons
}

func (c *Console) getDead(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	s, err := newSelection(r.URL.Query())
	if err == nil {
		err = s.check(deadReasons, nil)
	}
	if err != nil {
		return err
	}
	body := deadPage{Filter: s, Reasons: deadReasons, May: c.buttons(r, ReplayDead, DiscardDead)}
	groups := s.dead()
	groups.AfterID, groups.AfterGroup, groups.Limit = 0, s.AfterGroup, groupRows
	found, err := c.letters.Groups(r.Context(), groups)
	if err != nil {
		return err
	}
	body.Groups = rowsOf(found)
	body.More = moreGroups("dead", s, found)
	list := s.dead()
	list.Limit = rows
	if body.Total, err = c.letters.Count(r.Context(), s.dead()); err != nil {
		return err
	}
	if body.Letters, err = c.letters.List(r.Context(), list); err != nil {
		return err
	}
	if len(body.Letters) == rows {
		body.Next = nextPage("dead", s, body.Letters[rows-1].ID)
	}
	return c.show(w, r, page{Title: "Dead letters", Template: "dead", Section: "dead", Body: body})
}

// nextPage returns the URL of the next page of a list.
func nextPage(name string, s selection, last int64) string {
	query := s.values()
	query.Set("after", fmt.Sprint(last))
	return name + "?" + query.Encode()
}

// moreGroups returns the URL of the next groups, or "" if these are the last.
func moreGroups(name string, s selection, groups []operate.Group) string {
	if len(groups) < groupRows {
		return ""
	}
	query := s.values()
	query.Set("aftergroup", groups[len(groups)-1].Fingerprint)
	return name + "?" + query.Encode()
}

// letterPage is one dead letter.
type letterPage struct {
	Letter  deadletter.Letter
	Content content
	May     buttons
}

func (c *Console) getLetter(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	l, err := c.letters.Get(r.Context(), id)
	if err != nil {
		return err
	}
	return c.show(w, r, page{
		Title: fmt.Sprintf("Dead letter %d", id), Template: "letter", Section: "dead",
		Body: letterPage{
			Letter: l, Content: c.content(r, "dead", id, l.Topic, messageOf(l.MessageID, l.Payload, l.Metadata)),
			May: c.buttons(r, ReplayDead, DiscardDead, ReleaseKey),
		},
	})
}

// sentPage is the log of sent messages.
type sentPage struct {
	Filter   selection
	Messages []deadletter.SentMessage
	Next     string
	May      buttons
}

func (c *Console) getSent(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	s, err := newSelection(r.URL.Query())
	if err == nil {
		err = s.check(nil, nil)
	}
	if err != nil {
		return err
	}
	body := sentPage{Filter: s, May: c.buttons(r, ReplaySent)}
	list := s.sent()
	list.Limit = rows
	if body.Messages, err = c.sent.List(r.Context(), list); err != nil {
		return err
	}
	if len(body.Messages) == rows {
		body.Next = nextPage("sent", s, body.Messages[rows-1].ID)
	}
	return c.show(w, r, page{Title: "Sent log", Template: "sent", Section: "sent", Body: body})
}

// sentMessagePage is one sent message.
type sentMessagePage struct {
	Message deadletter.SentMessage
	Content content
	May     buttons
}

func (c *Console) getSentMessage(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	m, err := c.sent.Get(r.Context(), id)
	if err != nil {
		return err
	}
	return c.show(w, r, page{
		Title: fmt.Sprintf("Sent message %d", id), Template: "copy", Section: "sent",
		Body: sentMessagePage{
			Message: m, Content: c.content(r, "sent", id, m.Topic, messageOf(m.MessageID, m.Payload, m.Metadata)),
			May: c.buttons(r, ReplaySent),
		},
	})
}
