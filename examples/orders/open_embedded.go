package main

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/service"
)

// openEmbedded returns the transport that uses the part's own database.
func (a *app) openEmbedded(p *part, _ watermill.LoggerAdapter) (service.Transport, error) {
	transport, err := service.NewEmbedded(p.database)
	if err != nil {
		return nil, err
	}
	kind := "SQLite"
	if a.options.db != "" {
		kind = "PostgreSQL"
	}
	fmt.Fprintf(a.say, "orders: embedded transport: events go through %s, inside this process. The outbox, the forwarder, the\n"+
		"        inbox, the retries and the quarantine are the real ones. It does not show a broker: there are no confirms\n"+
		"        over a network, no redeliveries and no broker restarts. Use -db and -amqp, or make demo BACKEND=servers.\n", kind)
	a.demo.Wire = demo.EmbeddedWire{Transport: transport}
	return transport, nil
}
