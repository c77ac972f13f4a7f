package console

import (
	"fmt"
	"net/http"

	"github.com/watermill-once/once/pending"
)

var pendingStates = []string{string(pending.Due), string(pending.BackingOff), string(pending.Delayed), string(pending.Blocked)}

// may are the buttons of a page.
type buttons map[Action]bool

func (c *Console) buttons(r *http.Request, actions ...Action) buttons {
	all := buttons{}
	for _, action := range actions {
		all[action] = c.may(r, action)
	}
	return all
}

// Any reports whether there is a button at all, and so checkboxes make sense.
func (b buttons) Any() bool {
	for _, may := range b {
		if may {
			return true
		}
	}
	return false
}

// May reports whether there is the button of an action. Templates have no types.
func (b buttons) May(action string) bool { return b[Action(action)] }

// outboxPage is the messages that wait, by topic, and those that match the filter.
type outboxPage struct {
	Filter  selection
	States  []string
	Topics  []pending.Topic
	Partly  bool // Topics are those of the first rows
	Blocked []blockedKey
	Pauses  []pending.Pause

	Messages []pending.Message
	Next     string // URL of the next page
	May      buttons

	Pause, Resume bool // there are buttons for it
}

// blockedKey is an ordering key whose messages wait for one of them.
type blockedKey struct {
	Key, Topic string
	Waiting    int
	BlockedBy  int64
}

func (c *Console) getOutbox(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	s, err := newSelection(r.URL.Query())
	if err == nil {
		err = s.check(nil, pendingStates)
	}
	if err != nil {
		return err
	}
	body := outboxPage{
		Filter: s, States: pendingStates, May: c.buttons(r, RetryPending, CancelPending),
		Pause: c.may(r, PausePending), Resume: c.may(r, ResumePending),
	}
	backlog, err := c.outbox.Backlog(r.Context(), pending.Filter{})
	if err != nil {
		return err
	}
	body.Topics, body.Partly = backlog.Topics, backlog.Next > 0
	if body.Pauses, err = c.outbox.ListPaused(r.Context()); err != nil {
		return err
	}
	list, err := c.outbox.List(r.Context(), s.pending())
	if err != nil {
		return err
	}
	body.Messages = list.Messages
	if list.Next > 0 {
		query := s.values()
		query.Set("after", fmt.Sprint(list.Next))
		body.Next = "outbox?" + query.Encode()
	}
	if body.Blocked, err = c.blockedKeys(r); err != nil {
		return err
	}
	return c.show(w, r, page{Title: "Outbox", Template: "outbox", Section: "outbox", Body: body})
}

// blockedKeys returns the keys of the first messages that wait for another one.
func (c *Console) blockedKeys(r *http.Request) (keys []blockedKey, err error) {
	blocked, err := c.outbox.List(r.Context(), pending.Filter{State: pending.Blocked})
	index := map[string]int{}
	for _, m := range blocked.Messages {
		at, known := index[m.OrderingKey]
		if !known {
			at = len(keys)
			index[m.OrderingKey] = at
			keys = append(keys, blockedKey{Key: m.OrderingKey, Topic: m.Topic, BlockedBy: m.BlockedBy})
		}
		keys[at].Waiting++
	}
	return keys, err
}

// messagePage is one message of the outbox.
type messagePage struct {
	Message pending.Message
	Content content
	May     buttons
}

func (c *Console) getMessage(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	m, err := c.outbox.Get(r.Context(), id)
	if err != nil {
		return err
	}
	return c.show(w, r, page{
		Title: fmt.Sprintf("Message %d", id), Template: "message", Section: "outbox",
		Body: messagePage{
			Message: m, Content: c.content(r, "outbox", id, m.Topic, messageOf(m.MessageID, m.Payload, m.Metadata)),
			May: c.buttons(r, RetryPending, CancelPending),
		},
	})
}
