package servers

import (
	"errors"
	"fmt"
	"os"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	errDSN = errors.New("the DSN is invalid: it must be postgres://user:password@host/database, or key=value pairs")
	errURL = errors.New("the URL is invalid: it must be amqp://user:password@host/, with special characters percent-encoded")
)

// CheckVariables returns an error that names PG_DSN or AMQP_URL if it is set but
// invalid. The error does not say why it is invalid, because a parser's error may
// contain the password.
func CheckVariables() error {
	var errs []error
	if dsn := os.Getenv("PG_DSN"); dsn != "" {
		if _, err := pq.NewConfig(dsn); err != nil {
			errs = append(errs, fmt.Errorf("PG_DSN: %w", errDSN))
		}
	}
	if url := os.Getenv("AMQP_URL"); url != "" {
		if _, err := amqp.ParseURI(url); err != nil {
			errs = append(errs, fmt.Errorf("AMQP_URL: %w", errURL))
		}
	}
	return errors.Join(errs...)
}
