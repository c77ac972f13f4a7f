package main

import (
	"fmt"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/service"
)

// openEmbedded returns the transport that uses the service's own database.
func (a *app) openEmbedded(database service.Database) (service.Transport, demo.Wire, error) {
	transport, err := service.NewEmbedded(database)
	if err != nil {
		return nil, nil, err
	}
	kind := "SQLite"
	if a.options.db != "" {
		kind = "PostgreSQL"
	}
	fmt.Fprintf(a.say, "orders: embedded transport: events go through %s, inside this process. The outbox, the forwarder, the\n"+
		"        inbox, the retries and the quarantine are the real ones. It does not show a broker: there are no confirms\n"+
		"        over a network, no redeliveries and no broker restarts. Use -db and -amqp, or make demo BACKEND=servers.\n", kind)
	return transport, demo.EmbeddedWire{Transport: transport}, nil
}
