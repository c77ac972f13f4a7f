package console

import (
	"net/http"

	"github.com/watermill-once/once/parked"
)

// consumersPage shows all consumers with their instances and messages.
type consumersPage struct {
	Consumers []parked.Consumer
}

func (c *Console) getConsumers(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	all, err := c.parked.Consumers(r.Context())
	if err != nil {
		return err
	}
	return c.show(w, r, page{
		Title: "Consumers", Template: "consumers", Section: "consumers", Live: liveSeconds, Body: consumersPage{all},
	})
}
