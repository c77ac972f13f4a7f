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

// Filter selects the entries that match all fields that are not empty.
type Filter struct {
	// All selects every entry. A call that replays or discards by a Filter without any
	// other condition needs All, because such a Filter may be a mistake.
	All bool `json:"all,omitempty"`

	// IDs are the IDs of entries, not of their messages. A list without elements matches no
	// entry. If IDs is nil, entries with any ID match.
	IDs []int64 `json:"ids,omitempty"`

	// Consumer is the name of the consumer that failed. Topic is the topic of its
	// subscription.
	Consumer string `json:"consumer,omitempty"`
	Topic    string `json:"topic,omitempty"`

	// MessageID is the id of the message. Tenant is the tenant to which the message
	// belongs.
	MessageID string `json:"message_id,omitempty"`
	Tenant    string `json:"tenant,omitempty"`

	// AggregateType, AggregateID and EventType are values in the metadata of the message,
	// see outbox.SetAggregate and outbox.SetEventType. Only the first 255 bytes of each
	// value are compared.
	AggregateType string `json:"aggregate_type,omitempty"`
	AggregateID   string `json:"aggregate_id,omitempty"`
	EventType     string `json:"event_type,omitempty"`

	// Reason, ErrorType and Fingerprint describe the last failure. Reason must be one of
	// the Reason constants. Another value is an error, because a misspelt reason would
	// match no entry.
	Reason      string `json:"reason,omitempty"`
	ErrorType   string `json:"error_type,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`

	// FailedAfter (inclusive) and FailedBefore (exclusive) limit the time of the last
	// failure, by the database's clock and in whole milliseconds.
	FailedAfter  time.Time `json:"failed_after,omitzero"`
	FailedBefore time.Time `json:"failed_before,omitzero"`

	// AfterID is the ID of the last entry of the previous page. Entries are in the order of
	// their IDs. AfterGroup is the Fingerprint of the last group of the previous page.
	// Groups are in the order of their Fingerprints.
	AfterID    int64  `json:"after_id,omitempty"`
	AfterGroup string `json:"-"`

	// Limit is the maximum number of entries, or of groups. For lists, it defaults to 100.
	// For counts and changes, it defaults to no limit.
	Limit int `json:"limit,omitempty"`

	untilID int64 // highest ID, or 0
}

// pageSize is the default length of a list.
const pageSize = 100

func (f Filter) withPage() Filter {
	if f.Limit == 0 {
		f.Limit = pageSize
	}
	return f
}

// validate returns an error that names every invalid field.
func (f Filter) validate() error {
	errs := []error{f.selection().Validate(), operate.ValidateSpan("Failed", f.FailedAfter, f.FailedBefore)}
	reasons := append(slices.Clone(disposition.Reasons), disposition.ReasonCancelled)
	if f.Reason != "" && !slices.Contains(reasons, f.Reason) {
		errs = append(errs, fmt.Errorf("Reason is %q, none of %s", f.Reason, strings.Join(reasons, ", ")))
	}
	return errors.Join(errs...)
}

// validateChange is like validate. It also returns an error if the Filter matches every
// entry although the field All is false.
func (f Filter) validateChange() error {
	return errors.Join(f.validate(), f.selection().ValidateChange())
}

func (f Filter) selection() operate.Selection {
	return operate.Selection{Limit: f.Limit, AfterID: f.AfterID, All: f.All, Everything: f.matchesAll()}
}

// matchesAll reports whether every entry matches the Filter. A list of IDs that is
// empty but not nil matches no entry.
func (f Filter) matchesAll() bool {
	return f.IDs == nil && f.Consumer == "" && f.Topic == "" && f.MessageID == "" && f.Tenant == "" &&
		f.AggregateType == "" && f.AggregateID == "" && f.EventType == "" &&
		f.Reason == "" && f.ErrorType == "" && f.Fingerprint == "" && f.FailedAfter.IsZero() && f.FailedBefore.IsZero()
}

// asStored returns a copy of the Filter in which long strings are shortened and invalid
// characters are replaced. Strings in the rows were changed in the same way, so they
// are equal to these strings.
func (f Filter) asStored() Filter {
	for _, text := range []*string{
		&f.Consumer, &f.Topic, &f.MessageID, &f.Tenant, &f.AggregateType, &f.AggregateID, &f.EventType, &f.Reason, &f.ErrorType, &f.Fingerprint,
	} {
		*text = parked.Clean(*text, parked.MaxName)
	}
	return f
}

// limit returns the field Limit. If the field is 0, limit returns a number that is
// larger than the number of rows in any table.
func (f Filter) limit() int64 {
	if f.Limit == 0 {
		return 1 << 62
	}
	return int64(f.Limit)
}
