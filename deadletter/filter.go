package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/operate"
)

// Filter selects dead letters or sent messages: those that match every field
// that is not empty.
type Filter struct {
	// All selects everything. A call that changes rows refuses a Filter without
	// another condition unless All is set, because such a Filter may be a mistake.
	All bool `json:"all,omitempty"`

	// IDs are the IDs of rows, not of their messages. nil is no condition; a list
	// without elements matches nothing.
	IDs []int64 `json:"ids"`

	// MessageID, Topic and OrderingKey are those of the message.
	MessageID   string `json:"message_id,omitempty"`
	Topic       string `json:"topic,omitempty"`
	OrderingKey string `json:"ordering_key,omitempty"`

	// Tenant, AggregateType, AggregateID and EventType are values in the metadata
	// of the message, see outbox.SetTenant, SetAggregate and SetEventType. Their first
	// 255 characters are compared.
	Tenant        string `json:"tenant,omitempty"`
	AggregateType string `json:"aggregate_type,omitempty"`
	AggregateID   string `json:"aggregate_id,omitempty"`
	EventType     string `json:"event_type,omitempty"`

	// Reason is one of the Reason constants. Fingerprint is that of a [Group].
	// Both are for dead letters only.
	Reason      string `json:"reason,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`

	// FailedAfter and FailedBefore bound the time at which a message became a dead
	// letter: FailedAfter itself matches, FailedBefore does not. Both are whole
	// milliseconds of the database's clock, and for dead letters only.
	FailedAfter  time.Time `json:"failed_after,omitzero"`
	FailedBefore time.Time `json:"failed_before,omitzero"`

	// SentAfter and SentBefore bound the time at which a message was sent, in the
	// same way. Both are for the sent log only.
	SentAfter  time.Time `json:"sent_after,omitzero"`
	SentBefore time.Time `json:"sent_before,omitzero"`

	// AfterID is the ID of the last row of the page before: rows come in ascending
	// order of their IDs. AfterGroup is the Fingerprint of the last group of the
	// page before, and only for Groups.
	AfterID    int64  `json:"after_id,omitempty"`
	AfterGroup string `json:"after_group,omitempty"`

	// UntilID is the last ID, as of SentLog.SettledID. Defaults to no bound.
	UntilID int64 `json:"until_id,omitempty"`

	// Limit is the largest number of rows to list, replay, discard or export, or
	// of groups. Defaults to 100 for List and Groups, and to no limit for the
	// other calls.
	Limit int `json:"limit,omitempty"`
}

// validate names every field that cannot be used with the table.
func (t table) validate(f Filter) error {
	err := t.validateGroups(f)
	if f.AfterGroup != "" { // ignored, it would select more rows than meant
		err = errors.Join(err, errors.New("AfterGroup is set: only Groups returns pages of groups"))
	}
	return err
}

// validateGroups is validate for Groups.
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

// validateChange also refuses a Filter that selects everything without All.
func (t table) validateChange(f Filter) error {
	return errors.Join(t.validate(f), t.selection(f).ValidateChange())
}

func (t table) selection(f Filter) operate.Selection {
	return operate.Selection{Limit: f.Limit, AfterID: f.AfterID, All: f.All, Everything: t.everything(f)}
}

// everything reports whether f selects every row of every page.
func (t table) everything(f Filter) bool {
	f.AfterID, f.UntilID = 0, 0
	return len(t.conditions(f).Texts) == 0
}
