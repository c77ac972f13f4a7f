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
	// Schema names the tables and the kind of database. Defaults to PostgreSQL and
	// the prefix "once_".
	Schema schema.Config

	// Topics lists all topics that the consumers receive. The inbox does not contain
	// topics, so messages of topics that are not listed would count as never sent.
	Topics []string

	// Since is the beginning of the period to compare. By default, the comparison
	// begins where the sent log begins to contain all messages.
	Since time.Time

	// Recent is the length of the period before now that is left out of the comparison,
	// because messages that were sent recently may still be on their way. Defaults to one
	// hour.
	Recent time.Duration

	// LongestDelay is the longest time between sending a message and handling it. It is
	// needed for ids that contain no time. If the sent log has no row for such an id, the
	// message was never sent, or its row was deleted because it was old. The message was
	// certainly never sent if it was handled more than LongestDelay after the oldest row of
	// the sent log. Otherwise the message is not reported. Defaults to 24 hours.
	LongestDelay time.Duration

	// Limit is the maximum number of sent messages that may be missing at one consumer. If
	// more are missing, the comparison fails with [ErrTooDifferent]. [ReceiverConfig].Limit
	// limits the ids that a consumer lists. Defaults to 1,000,000.
	Limit int

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider,
	// which does nothing until you set another provider.
	MeterProvider metric.MeterProvider
}

func (c SenderConfig) withDefaults() SenderConfig {
	c.Schema = c.Schema.WithDefaults()
	c.Recent = cmp.Or(c.Recent, time.Hour)
	c.LongestDelay = cmp.Or(c.LongestDelay, 24*time.Hour)
	c.Limit = cmp.Or(c.Limit, 1_000_000)
	c.Topics = slices.Clone(c.Topics)
	return c
}

func (c SenderConfig) validate() error {
	errs := []error{c.Schema.Validate()}
	if len(c.Topics) == 0 {
		errs = append(errs, errors.New("Topics is empty: name all topics that the consumers receive"))
	}
	if slices.Contains(c.Topics, "") {
		errs = append(errs, errors.New("Topics has an empty name"))
	}
	if c.Recent < 0 {
		errs = append(errs, fmt.Errorf("Recent is %v: negative", c.Recent))
	}
	if c.LongestDelay < 0 {
		errs = append(errs, fmt.Errorf("LongestDelay is %v: negative", c.LongestDelay))
	}
	if c.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: negative", c.Limit))
	}
	return errors.Join(errs...)
}

// ReceiverConfig configures a [Receiver]. Consumers must be set.
type ReceiverConfig struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL and
	// the prefix "once_".
	Schema schema.Config

	// Consumers are the names of the consumers to compare. Each of these consumers must
	// receive all messages of the sender's topics.
	Consumers []string

	// InboxRetention is how long all consumers remember the ids of messages. Set it to
	// the shortest dedup.Config.Retention of the consumers. Older messages are not
	// compared. Defaults to 7 days, because every inbox with the default
	// dedup.Config.MaxDuplicateAge remembers ids for at least 7 days.
	InboxRetention time.Duration

	// Limit is the maximum number of ids that an answer may list for one consumer. If a
	// comparison needs more, it fails with [ErrTooDifferent]. Defaults to 1,000,000.
	Limit int
}

func (c ReceiverConfig) withDefaults() ReceiverConfig {
	c.Schema = c.Schema.WithDefaults()
	c.InboxRetention = cmp.Or(c.InboxRetention, 7*24*time.Hour)
	c.Limit = cmp.Or(c.Limit, 1_000_000)
	c.Consumers = slices.Clone(c.Consumers)
	return c
}

func (c ReceiverConfig) validate() error {
	errs := []error{c.Schema.Validate()}
	if len(c.Consumers) == 0 {
		errs = append(errs, errors.New("Consumers is empty: name the consumers to compare"))
	}
	if slices.Contains(c.Consumers, "") {
		errs = append(errs, errors.New("Consumers has an empty name"))
	}
	if c.InboxRetention < 0 {
		errs = append(errs, fmt.Errorf("InboxRetention is %v: negative", c.InboxRetention))
	}
	if c.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: negative", c.Limit))
	}
	return errors.Join(errs...)
}
