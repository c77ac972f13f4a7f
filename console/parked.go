package console

import (
	"fmt"
	"net/http"

	"github.com/watermill-once/once/parked"
)

var parkedStates = []string{
	string(parked.Waiting), string(parked.Held), string(parked.Quarantined), string(parked.Resolved), string(parked.Discarded),
}

// parkedPage shows the parked messages of all consumers that match the filter.
type parkedPage struct {
	Filter   selection
	States   []string
	Messages []parked.Message
	Next     string // URL of the next page
	May      buttons
}

func (c *Console) getParked(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	s, err := newSelection(r.URL.Query())
	if err == nil {
		err = s.check(nil, parkedStates)
	}
	if err != nil {
		return err
	}
	body := parkedPage{Filter: s, States: parkedStates, May: c.buttons(r, RunParked, CancelParked, DiscardParked)}
	list, err := c.parked.List(r.Context(), s.parked())
	if err != nil {
		return err
	}
	body.Messages = list.Messages
	if list.Next > 0 {
		body.Next = nextPage("parked", s, list.Next)
	}
	return c.show(w, r, page{Title: "Parked messages", Template: "parked", Section: "parked", Body: body})
}

// parkedMessagePage shows one parked message.
type parkedMessagePage struct {
	Message parked.Message
	Content content
	May     buttons
}

func (c *Console) getParkedMessage(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	m, err := c.parked.Get(r.Context(), id)
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
