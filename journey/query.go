package journey

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/parked"
)

// Query says which messages to look for. Set MessageID, AggregateID or Tenant, and
// only one of them.
type Query struct {
	// MessageID is the id of one message.
	MessageID string

	// AggregateType and AggregateID are those of outbox.SetAggregate. Without a
	// type, AggregateID selects aggregates of all types.
	AggregateType, AggregateID string

	// Tenant is that of outbox.SetTenant. Only the latest 100,000 rows of each table
	// are looked at.
	Tenant string

	// Causes adds the messages that the found messages caused, the messages that
	// these caused, and so on, while there are fewer than Limit messages.
	Causes bool

	// Limit is the largest number of messages: the latest ones are returned. Defaults
	// to 100.
	Limit int

	// OutboxRows is how many rows of the outbox to look at, the oldest first. Defaults
	// to 200,000.
	OutboxRows int
}

func (q Query) withDefaults() Query {
	q.Limit = cmp.Or(q.Limit, 100)
	q.OutboxRows = cmp.Or(q.OutboxRows, 200_000)
	return q
}

func (q Query) validate() error {
	var errs []error
	set := 0
	for _, value := range []string{q.MessageID, q.AggregateID, q.Tenant} {
		if value != "" {
			set++
		}
	}
	if set != 1 {
		errs = append(errs, fmt.Errorf("%d of MessageID, AggregateID and Tenant are set: set one", set))
	}
	for _, text := range []struct{ name, value string }{
		{"MessageID", q.MessageID}, {"AggregateType", q.AggregateType}, {"AggregateID", q.AggregateID}, {"Tenant", q.Tenant},
	} {
		if parked.Clean(text.value, len(text.value)) != text.value {
			errs = append(errs, fmt.Errorf("%s is %.40q: no text that a database can store", text.name, text.value))
		}
	}
	if q.AggregateType != "" && q.AggregateID == "" {
		errs = append(errs, errors.New("AggregateType is set without AggregateID"))
	}
	if q.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: negative", q.Limit))
	}
	if q.OutboxRows < 0 {
		errs = append(errs, fmt.Errorf("OutboxRows is %d: negative", q.OutboxRows))
	}
	return errors.Join(errs...)
}
