package rabbit

import (
	"errors"
	"fmt"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Only an error that the broker or the TopologyBuilder returned for the declaration
// refuses it. After all others it is tried again.
func TestRefusedDeclarationsAreToldFromLostConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errors.New("from the TopologyBuilder"), true},
		{amqp091.ErrClosed, false},
		{&amqp091.Error{Code: amqp091.PreconditionFailed, Recover: true, Server: true}, true},
		{&amqp091.Error{Code: amqp091.AccessRefused, Recover: true, Server: true}, true},
		{&amqp091.Error{Code: amqp091.CommandInvalid, Server: true}, true}, // the broker closes the connection
		{&amqp091.Error{Code: amqp091.NotAllowed, Server: true}, true},
		{&amqp091.Error{Code: amqp091.NotImplemented, Server: true}, true},
		{&amqp091.Error{Code: amqp091.ConnectionForced, Server: true}, false},
		{&amqp091.Error{Code: amqp091.InternalError, Server: true}, false},
		{&amqp091.Error{Code: amqp091.NotAllowed, Recover: true}, false}, // the client's own error
	} {
		for _, err := range []error{c.err, fmt.Errorf("declare: %w", c.err)} {
			if got := refusesDeclaration(err); got != c.want {
				t.Errorf("refusesDeclaration(%v) is %t", err, got)
			}
		}
	}
}
