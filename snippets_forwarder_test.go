package once_test

import (
	"database/sql"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/rabbit"
)

func _(db *sql.DB, publisher *rabbit.Publisher) (*forwarder.Forwarder, error) {
	fwd, err := forwarder.New(db, publisher, forwarder.Config{
		Policies: map[string]forwarder.Policy{
			"payments": {MaxAttempts: 100, AfterDead: forwarder.BlockKey},
			"mails":    {MaxAttempts: 3, Backoff: forwarder.Exponential(time.Second, time.Minute)},
		},
	})
	return fwd, err
}
