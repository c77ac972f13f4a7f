package console

import (
	"net/http"

	"github.com/watermill-once/once/status"
)

// forwardersPage shows the running forwarders and the slots.
type forwardersPage struct {
	Forwarders []status.Forwarder
	Slots      []status.Slot
	Free       []status.Slot // slots without an owner; no forwarder sends their messages
}

func (c *Console) getForwarders(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
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
