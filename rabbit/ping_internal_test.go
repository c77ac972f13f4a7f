package rabbit

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// The error of Ping names the first cause and its remedy. Ping waits only if the
// problem can end without a change of the configuration or the broker.
func TestPingErrorNamesTheCauseAndTheRemedy(t *testing.T) {
	t.Parallel()
	config := amqp.ConnectionConfig{AmqpURI: "amqp://ann:secret@broker:5673/shop"}
	const (
		login = "rabbit: RabbitMQ at broker:5673 refuses the login; check user and password in Connection.AmqpURI: "
		vhost = `rabbit: RabbitMQ at broker:5673 refuses virtual host "shop"; create it with rabbitmqctl add_vhost, ` +
			"and give the user rights with rabbitmqctl set_permissions: "
		noTLS = "rabbit: no TLS connection to RabbitMQ at broker:5673; check Connection.TLSConfig, the broker's certificate, " +
			"and that the port is the one for TLS: "
		blocked = "rabbit: RabbitMQ at broker:5673 accepts no messages; free memory or disk there: "
		gone    = "rabbit: no connection to RabbitMQ at broker:5673; check host and port in Connection.AmqpURI, " +
			"and that the broker runs: "
	)
	for _, c := range []struct {
		reason error
		says   string
		stays  bool
	}{
		{amqp091.ErrCredentials, login, true},
		{&amqp091.Error{Code: amqp091.AccessRefused, Server: true, Reason: "ACCESS_REFUSED"}, login, true},
		{amqp091.ErrVhost, gone, false}, // the broker gave no reason
		{&amqp091.Error{Code: amqp091.NotAllowed, Server: true, Reason: "vhost shop not found"}, vhost, true},
		{&amqp091.Error{Code: amqp091.NotAllowed, Server: true, Reason: "connection limit (1) is reached"}, gone, false},
		{&amqp091.Error{Code: amqp091.NotAllowed, Reason: "not from the broker"}, gone, false},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, noTLS, true},
		{tls.RecordHeaderError{Msg: "no TLS"}, noTLS, true},
		{tls.AlertError(42), noTLS, true},
		{x509.UnknownAuthorityError{}, noTLS, true},
		{errBlocked, blocked, false},
		{errors.New("connection refused"), gone, false},
	} {
		for _, reason := range []error{c.reason, fmt.Errorf("dial: %w", c.reason)} {
			err := pingError(config, reason)
			if want := c.says + reason.Error(); err.Error() != want {
				t.Errorf("got  %s\nwant %s", err, want)
			}
			if !errors.Is(err, reason) || permanent(reason) != c.stays {
				t.Errorf("%v: permanent is %t, want %t", reason, permanent(reason), c.stays)
			}
		}
	}
}
