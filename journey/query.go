package journey

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/parked"
)

// Query says which messages to look for. Set exactly one of MessageID, AggregateID and
// Tenant.
type Query struct {
	// MessageID is the id of one message.
	MessageID string

	// AggregateType and AggregateID are the values that outbox.SetAggregate has set.
	// Without a type, AggregateID selects aggregates of all types.
	AggregateType, AggregateID string

	// Tenant is the value that outbox.SetTenant has set. Find searches only the latest
	// 50,000 rows of the sent log, and the latest 20,000 parked messages that are not in
	// quarantine.
	Tenant string

	// Causes adds the messages that were caused by the found messages, the messages that
	// were caused by those, and so on, up to Limit messages.
	Causes bool

	// Limit is the maximum number of messages. If more match, Find returns the latest
	// messages. Defaults to 100.
	Limit int

	// OutboxRows is how many rows of the outbox to search, from the oldest row on. Defaults
	// to 100,000 for a MessageID without Causes. Otherwise it defaults to 20,000, because
	// these searches read the metadata of each row, which takes longer.
	OutboxRows int
}

func (q Query) withDefaults() Query {
	q.Limit = cmp.Or(q.Limit, 100)
	if q.MessageID != "" && !q.Causes {
		q.OutboxRows = cmp.Or(q.OutboxRows, 100_000)
	}
	q.OutboxRows = cmp.Or(q.OutboxRows, 20_000)
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
