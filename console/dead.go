package console

import (
	"fmt"
	"net/http"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/status"
)

var deadReasons = []string{
	dead.ReasonExhausted, dead.ReasonUnacceptable, dead.ReasonMalformed, dead.ReasonInvalid,
	dead.ReasonCancelled,
}

const rows = 100

// mostCounted limits the matching rows that a page counts.
const mostCounted = 10_000

// The caller counts at most mostCounted+1 messages.
func totalOf(n operate.Count) status.Count {
	return status.Count{N: min(n.N, mostCounted), More: n.Next > 0 || n.N > mostCounted}
}

type deadPage struct {
	Filter  selection
	Reasons []string
	Groups  []groupRow
	More    string // URL of the page with more groups
	Partial bool   // whether Groups contains only the groups of the latest letters
	Total   status.Count
	Letters []dead.Letter
	Next    string
	May     buttons
}

func (c *Console) getDead(w http.ResponseWriter, r *http.Request) error {
	s, err := selected(r, "dead", deadReasons, nil)
	if err != nil {
		return err
	}
	body := deadPage{Filter: s, Reasons: deadReasons, May: c.buttons(r, ReplayDead, DiscardDead)}
	groups := s.filter("dead")
	groups.AfterID, groups.AfterGroup, groups.Limit = 0, s.AfterGroup, groupRows
	found, err := c.letters.Groups(r.Context(), groups)
	if err != nil {
		return err
	}
	body.Groups, body.Partial = rowsOf(found.Groups), found.Partial
	body.More = moreGroups("dead", s, found.Groups)
	list := s.filter("dead")
	list.Limit = rows
	all := s.filter("dead")
	all.AfterID, all.Limit = 0, mostCounted+1
	n, err := c.letters.Count(r.Context(), all)
	if err != nil {
		return err
	}
	body.Total = totalOf(n)
	letters, err := c.letters.List(r.Context(), list)
	if err != nil {
		return err
	}
	body.Letters, body.Next = letters.Rows, nextPage("dead", s, letters.Next)
	return c.show(w, r, page{Title: "Dead letters", Template: "dead", Section: "dead", Body: body})
}

func nextPage(name string, s selection, next int64) string {
	if next == 0 {
		return ""
	}
	query := s.values()
	query.Set("after", fmt.Sprint(next))
	return name + "?" + query.Encode()
}

func moreGroups(name string, s selection, groups []operate.Group) string {
	if len(groups) < groupRows {
		return ""
	}
	query := s.values()
	query.Set("aftergroup", groups[len(groups)-1].Fingerprint)
	return name + "?" + query.Encode()
}

type letterPage struct {
	Letter  dead.Letter
	Content content
	May     buttons
}

func (c *Console) getLetter(w http.ResponseWriter, r *http.Request) error {
	id, l, err := named(r, c.letters.Get)
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

type sentPage struct {
	Filter   selection
	Messages []dead.SentMessage
	Next     string
	May      buttons
}

func (c *Console) getSent(w http.ResponseWriter, r *http.Request) error {
	s, err := selected(r, "sent", nil, nil)
	if err != nil {
		return err
	}
	body := sentPage{Filter: s, May: c.buttons(r, ReplaySent)}
	list := s.filter("sent")
	list.Limit = rows
	found, err := c.sent.List(r.Context(), list)
	if err != nil {
		return err
	}
	body.Messages, body.Next = found.Rows, nextPage("sent", s, found.Next)
	return c.show(w, r, page{Title: "Sent log", Template: "sent", Section: "sent", Body: body})
}

type sentMessagePage struct {
	Message dead.SentMessage
	Content content
	May     buttons
}

func (c *Console) getSentMessage(w http.ResponseWriter, r *http.Request) error {
	id, m, err := named(r, c.sent.Get)
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
