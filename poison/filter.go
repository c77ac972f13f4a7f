package poison

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/parked"
)

// Filter selects entries: an entry must match every field that is not empty.
type Filter struct {
	// All selects every entry. It is required to replay or discard by a Filter
	// without another condition, because such a Filter may be a mistake.
	All bool `json:"all,omitempty"`

	// IDs are those of the entries, not of their messages. A list without
	// elements matches nothing; nil is no condition.
	IDs []int64 `json:"ids,omitempty"`

	// Consumer is the name of the consumer that failed, Topic the topic of its
	// subscription.
	Consumer string `json:"consumer,omitempty"`
	Topic    string `json:"topic,omitempty"`

	// MessageID is the id of the message, Tenant the tenant to which it belongs.
	MessageID string `json:"message_id,omitempty"`
	Tenant    string `json:"tenant,omitempty"`

	// AggregateType, AggregateID and EventType are values in the metadata of the
	// message, see outbox.SetAggregate and outbox.SetEventType. Their first 255 bytes
	// are compared.
	AggregateType string `json:"aggregate_type,omitempty"`
	AggregateID   string `json:"aggregate_id,omitempty"`
	EventType     string `json:"event_type,omitempty"`

	// Reason, ErrorType and Fingerprint are those of the last failure. Reason is
	// one of the Reason constants; any other value is an error, because a
	// misspelt one would match nothing.
	Reason      string `json:"reason,omitempty"`
	ErrorType   string `json:"error_type,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`

	// FailedAfter (inclusive) and FailedBefore (exclusive) bound the time of the
	// last failure, by the database's clock and in whole milliseconds.
	FailedAfter  time.Time `json:"failed_after,omitzero"`
	FailedBefore time.Time `json:"failed_before,omitzero"`

	// AfterID is the ID of the last entry of the previous page: entries come in
	// the order of their IDs. AfterGroup is the Fingerprint of the last group of
	// the previous page: groups come in the order of their Fingerprints.
	AfterID    int64  `json:"after_id,omitempty"`
	AfterGroup string `json:"-"`

	// Limit bounds the number of entries, or of groups. Defaults to 100 for
	// lists, and to no limit for changes.
	Limit int `json:"limit,omitempty"`
}

// pageSize is the default length of a list.
const pageSize = 100

func (f Filter) withPage() Filter {
	if f.Limit == 0 {
		f.Limit = pageSize
	}
	return f
}

// validate returns an error that names every field that cannot be used.
func (f Filter) validate() error {
	errs := []error{f.selection().Validate(), operate.ValidateSpan("Failed", f.FailedAfter, f.FailedBefore)}
	reasons := append(slices.Clone(disposition.Reasons), disposition.ReasonCancelled)
	if f.Reason != "" && !slices.Contains(reasons, f.Reason) {
		errs = append(errs, fmt.Errorf("Reason is %q, none of %s", f.Reason, strings.Join(reasons, ", ")))
	}
	return errors.Join(errs...)
}

// validateChange also refuses a Filter that matches every entry without All.
func (f Filter) validateChange() error {
	return errors.Join(f.validate(), f.selection().ValidateChange())
}

func (f Filter) selection() operate.Selection {
	return operate.Selection{Limit: f.Limit, AfterID: f.AfterID, All: f.All, Everything: f.matchesAll()}
}

// matchesAll reports whether the Filter excludes no entry. An empty list of IDs
// that is not nil excludes all of them.
func (f Filter) matchesAll() bool {
	return f.IDs == nil && f.Consumer == "" && f.Topic == "" && f.MessageID == "" && f.Tenant == "" &&
		f.AggregateType == "" && f.AggregateID == "" && f.EventType == "" &&
		f.Reason == "" && f.ErrorType == "" && f.Fingerprint == "" && f.FailedAfter.IsZero() && f.FailedBefore.IsZero()
}

// asStored returns the Filter with its texts as rows have them.
func (f Filter) asStored() Filter {
	for _, text := range []*string{
		&f.Consumer, &f.Topic, &f.MessageID, &f.Tenant, &f.AggregateType, &f.AggregateID, &f.EventType, &f.Reason, &f.ErrorType, &f.Fingerprint,
	} {
		*text = parked.Clean(*text, parked.MaxName)
	}
	return f
}

// limit returns Limit, or a number that no table reaches.
func (f Filter) limit() int64 {
	if f.Limit == 0 {
		return 1 << 62
	}
	return int64(f.Limit)
}
