package console

import (
	"fmt"
	"net/http"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/status"
)

var pendingStates = []string{outbox.Due, outbox.BackingOff, outbox.Delayed, outbox.Blocked}

// buttons says for each action whether the page shows its button.
type buttons map[Action]bool

func (c *Console) buttons(r *http.Request, actions ...Action) buttons {
	all := buttons{}
	for _, action := range actions {
		all[action] = c.may(r, action)
	}
	return all
}

// Any reports whether the page shows a button. Without, it needs no checkboxes.
func (b buttons) Any() bool {
	for _, may := range b {
		if may {
			return true
		}
	}
	return false
}

// May takes a string, because templates cannot convert types.
func (b buttons) May(action string) bool { return b[Action(action)] }

type outboxPage struct {
	Filter  selection
	States  []string
	Topics  []outbox.Topic
	Partly  bool // whether Topics includes only the first rows of the outbox
	Blocked []blockedKey
	Pauses  []outbox.Pause

	Messages []outbox.Message
	Next     string // URL of the next page
	May      buttons

	Pause, Resume bool // whether the page shows these buttons
}

// blockedKey is an ordering key whose messages wait for an earlier message of the key.
type blockedKey struct {
	Key, Topic string
	Waiting    int
	BlockedBy  int64
	Letter     int64 // ID of the dead letter that blocks the key, or 0
}

func (c *Console) getOutbox(w http.ResponseWriter, r *http.Request) error {
	s, err := selected(r, "outbox", nil, pendingStates)
	if err != nil {
		return err
	}
	body := outboxPage{
		Filter: s, States: pendingStates, May: c.buttons(r, RetryPending, CancelPending),
		Pause: c.may(r, PausePending), Resume: c.may(r, ResumePending),
	}
	backlog, err := c.outbox.Backlog(r.Context(), operate.Filter{})
	if err != nil {
		return err
	}
	body.Topics, body.Partly = backlog.Topics, backlog.Next > 0
	if body.Pauses, err = c.outbox.ListPaused(r.Context()); err != nil {
		return err
	}
	list, err := c.outbox.List(r.Context(), s.filter("outbox"))
	if err != nil {
		return err
	}
	body.Messages = list.Rows
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

func (c *Console) blockedKeys(r *http.Request) (keys []blockedKey, err error) {
	blocked, err := c.outbox.List(r.Context(), operate.Filter{State: outbox.Blocked})
	index := map[string]int{}
	for _, m := range blocked.Rows {
		at, known := index[m.OrderingKey]
		if !known {
			at = len(keys)
			index[m.OrderingKey] = at
			keys = append(keys, blockedKey{Key: m.OrderingKey, Topic: m.Topic, BlockedBy: m.BlockedBy, Letter: m.BlockedByLetter})
		}
		keys[at].Waiting++
	}
	return keys, err
}

type messagePage struct {
	Message outbox.Message
	Content content
	May     buttons
}

func (c *Console) getMessage(w http.ResponseWriter, r *http.Request) error {
	id, m, err := named(r, c.outbox.Get)
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

type forwardersPage struct {
	Forwarders []status.Forwarder
	Slots      []status.Slot
	Free       []status.Slot // slots without an owner; no forwarder sends their messages
}

func (c *Console) getForwarders(w http.ResponseWriter, r *http.Request) error {
	var (
		body forwardersPage
		err  error
	)
	if body.Forwarders, err = c.status.Forwarders(r.Context()); err != nil {
		return err
	}
	if body.Slots, err = c.status.Slots(r.Context()); err != nil {
		return err
	}
	for _, s := range body.Slots {
		if s.Owner == "" {
			body.Free = append(body.Free, s)
		}
	}
	return c.show(w, r, page{Title: "Forwarders", Template: "forwarders", Section: "forwarders", Live: liveSeconds, Body: body})
}
