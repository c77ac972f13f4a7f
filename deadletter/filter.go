package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/operate"
)

// Filter selects the dead letters or sent messages that match all fields that are not
// empty.
type Filter struct {
	// All selects all rows. A call that changes rows refuses a Filter without any condition
	// unless All is true, because such a Filter may be a mistake.
	All bool `json:"all,omitempty"`

	// IDs are the IDs of rows, not of their messages. If IDs is nil, rows with any ID
	// match. A list without elements matches no row.
	IDs []int64 `json:"ids"`

	// MessageID, Topic and OrderingKey must be equal to the values of the message.
	MessageID   string `json:"message_id,omitempty"`
	Topic       string `json:"topic,omitempty"`
	OrderingKey string `json:"ordering_key,omitempty"`

	// Tenant, AggregateType, AggregateID and EventType are values in the metadata of the
	// message, see outbox.SetTenant, SetAggregate and SetEventType. Only the first 255
	// characters of each value are compared.
	Tenant        string `json:"tenant,omitempty"`
	AggregateType string `json:"aggregate_type,omitempty"`
	AggregateID   string `json:"aggregate_id,omitempty"`
	EventType     string `json:"event_type,omitempty"`

	// Reason is one of the Reason constants. Fingerprint is the Fingerprint of a [Group].
	// Both are only for dead letters.
	Reason      string `json:"reason,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`

	// FailedAfter (inclusive) and FailedBefore (exclusive) limit the time at which a
	// message became a dead letter, by the database's clock and in whole milliseconds. Both
	// are only for dead letters.
	FailedAfter  time.Time `json:"failed_after,omitzero"`
	FailedBefore time.Time `json:"failed_before,omitzero"`

	// SentAfter (inclusive) and SentBefore (exclusive) limit the time at which a message
	// was sent, by the database's clock and in whole milliseconds. Both are only for the
	// sent log.
	SentAfter  time.Time `json:"sent_after,omitzero"`
	SentBefore time.Time `json:"sent_before,omitzero"`

	// AfterID selects rows with a higher ID. For the next page, set it to the ID of the
	// last row of the previous page, because rows are listed in ascending order of their
	// IDs. AfterGroup is the Fingerprint of the last group of the previous page. It is only
	// for Groups.
	AfterID    int64  `json:"after_id,omitempty"`
	AfterGroup string `json:"after_group,omitempty"`

	// UntilID is the highest ID that matches, for example the result of SentLog.SettledID.
	// Defaults to 0, which means no limit.
	UntilID int64 `json:"until_id,omitempty"`

	// Limit is the maximum number of rows to list, count, replay, discard or export. For
	// Groups, it is the maximum number of groups. Defaults to 100 for List and Groups, and
	// to no limit for the other calls.
	Limit int `json:"limit,omitempty"`
}

// validate returns an error that names every field that is invalid for the table.
func (t table) validate(f Filter) error {
	err := t.validateGroups(f)
	if f.AfterGroup != "" { // if it were ignored, more rows than meant would match
		err = errors.Join(err, errors.New("AfterGroup is set: only Groups returns pages of groups"))
	}
	return err
}

// validateGroups works like validate, for the method Groups. It allows AfterGroup.
func (t table) validateGroups(f Filter) error {
	var until error
	if f.UntilID < 0 {
		until = fmt.Errorf("UntilID is %d: negative", f.UntilID)
	}
	errs := []error{
		t.selection(f).Validate(), until,
		operate.ValidateSpan("Failed", f.FailedAfter, f.FailedBefore), operate.ValidateSpan("Sent", f.SentAfter, f.SentBefore),
	}
	failed, sent := !f.FailedAfter.IsZero() || !f.FailedBefore.IsZero(), !f.SentAfter.IsZero() || !f.SentBefore.IsZero()
	switch {
	case !t.dead && (f.Reason != "" || f.Fingerprint != ""):
		errs = append(errs, errors.New("Reason or Fingerprint is set: only dead letters have them"))
	case !t.dead && failed:
		errs = append(errs, errors.New("FailedAfter or FailedBefore is set: use SentAfter and SentBefore for sent messages"))
	case t.dead && sent:
		errs = append(errs, errors.New("SentAfter or SentBefore is set: use FailedAfter and FailedBefore for dead letters"))
	case f.Reason != "" && !slices.Contains(reasons, f.Reason): // a misspelt reason would match nothing
		errs = append(errs, fmt.Errorf("Reason is %q, none of %s", f.Reason, strings.Join(reasons, ", ")))
	}
	return errors.Join(errs...)
}

// validateChange works like validate. It also returns an error for a Filter without All
// that selects all rows.
func (t table) validateChange(f Filter) error {
	return errors.Join(t.validate(f), t.selection(f).ValidateChange())
}

func (t table) selection(f Filter) operate.Selection {
	return operate.Selection{Limit: f.Limit, AfterID: f.AfterID, All: f.All, Everything: t.everything(f)}
}

// everything reports whether f selects all rows. It ignores AfterID and UntilID, which
// only limit the IDs.
func (t table) everything(f Filter) bool {
	f.AfterID, f.UntilID = 0, 0
	return len(t.conditions(f).Texts) == 0
}
