package poison

import (
	"context"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/parked"
)

// Entry is a message in quarantine, with why it is there: Reason is one of the
// Reason constants.
type Entry = parked.Entry

// Act says who replays or discards, and why: it is kept with what was done.
type Act = parked.Act

// ErrNotFound says that there is no message of that ID in quarantine.
var ErrNotFound = parked.ErrNotFound

// Filter says which messages to list. Empty fields match everything.
type Filter struct {
	// Consumer is the name of the consumer that failed.
	Consumer string

	// AfterID is the ID of the last entry of the page before.
	AfterID int64

	// Limit is the most entries to return. Defaults to 100.
	Limit int
}

// List returns the messages in quarantine, in order of their ID.
func (s *Store) List(ctx context.Context, f Filter) ([]Entry, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	if f.Limit < 0 {
		return nil, fmt.Errorf("poison: Limit is %d: negative", f.Limit)
	}
	entries, err := s.parked.List(ctx, parked.Filter{
		State: parked.Quarantined, Consumer: f.Consumer, AfterID: f.AfterID, Limit: f.Limit,
	})
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return entries, nil
}

// Get returns the entry with that ID, also after it was replayed or discarded,
// or [ErrNotFound].
func (s *Store) Get(ctx context.Context, id int64) (Entry, error) {
	entry, err := s.parked.Get(ctx, id)
	if err != nil {
		return Entry{}, fmt.Errorf("poison: %w", err)
	}
	return entry, nil
}

// Replay gives messages back to the consumers that failed them, due now and
// with fresh budgets. All of them or, if one is not in quarantine
// ([ErrNotFound]), none.
func (s *Store) Replay(ctx context.Context, act Act, ids ...int64) error {
	if err := act.Validate(ids); err != nil {
		return fmt.Errorf("poison: replay: %w", err)
	}
	if err := s.parked.Replay(ctx, act, ids); err != nil {
		return fmt.Errorf("poison: replay: %w", err)
	}
	return nil
}

// Discard ends messages for good. They stay readable, and a late copy with the
// same id is not run: the inbox counts it as done. All of them or, if one is
// not in quarantine ([ErrNotFound]), none.
func (s *Store) Discard(ctx context.Context, act Act, ids ...int64) error {
	err := act.Validate(ids)
	if act.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the message may be lost"))
	}
	if err != nil {
		return fmt.Errorf("poison: discard: %w", err)
	}
	if err := s.parked.Discard(ctx, act, ids); err != nil {
		return fmt.Errorf("poison: discard: %w", err)
	}
	return nil
}
