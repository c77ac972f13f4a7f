package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/schema"
)

// SenderConfig configures a [Sender]. Topics must be set.
type SenderConfig struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Topics lists all topics that the consumers receive. The inbox does not contain topics, so
	// messages of others would count as never sent.
	Topics []string

	// Since is the beginning of the period to compare. Defaults to where the sent log begins to
	// contain all messages.
	Since time.Time

	// Recent is the period before now that is left out, because messages may still be on their way.
	// Defaults to one hour.
	Recent time.Duration

	// LongestDelay is the longest time between sending a message and handling it, for ids that
	// contain no time. If such an id is not in the sent log, its row may have been deleted because
	// it was old, so the message is only reported if it was handled more than LongestDelay after
	// the oldest row. Defaults to 24 hours.
	LongestDelay time.Duration

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider.
	MeterProvider metric.MeterProvider
}

func (c SenderConfig) prepared() (SenderConfig, error) {
	c.Schema, c.Topics = c.Schema.WithDefaults(), slices.Clone(c.Topics)
	c.Recent, c.LongestDelay = cmp.Or(c.Recent, time.Hour), cmp.Or(c.LongestDelay, 24*time.Hour)
	return c, errors.Join(c.Schema.Validate(), checkNames("Topics", c.Topics, "name all topics that the consumers receive"),
		checkDuration("Recent", c.Recent), checkDuration("LongestDelay", c.LongestDelay))
}

// ReceiverConfig configures a [Receiver]. Consumers must be set.
type ReceiverConfig struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Consumers are the consumers to compare. Each must receive all of the sender's topics.
	Consumers []string

	// InboxRetention is how long all consumers remember the ids of messages: the shortest
	// dedup.Config.Retention. Older messages are not compared. Defaults to 7 days, the default of
	// dedup.Config.MaxDuplicateAge.
	InboxRetention time.Duration
}

func (c ReceiverConfig) prepared() (ReceiverConfig, error) {
	c.Schema, c.Consumers = c.Schema.WithDefaults(), slices.Clone(c.Consumers)
	c.InboxRetention = cmp.Or(c.InboxRetention, 7*24*time.Hour)
	return c, errors.Join(c.Schema.Validate(), checkNames("Consumers", c.Consumers, "name the consumers to compare"),
		checkDuration("InboxRetention", c.InboxRetention))
}

func checkNames(field string, names []string, remedy string) error {
	switch {
	case len(names) == 0:
		return fmt.Errorf("%s is empty: %s", field, remedy)
	case slices.Contains(names, ""):
		return fmt.Errorf("%s has an empty name", field)
	}
	return nil
}

func checkDuration(field string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s is %v: negative", field, d)
	}
	return nil
}
