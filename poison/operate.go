package poison

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/watermill-once/once/internal/parked"
)

var (
	// ErrNotFound says that there is no message of that ID in quarantine.
	ErrNotFound = parked.ErrNotFound

	// ErrUndecodable says that a message cannot be replayed as it is, because
	// its transport could not decode it: there is only its raw form.
	ErrUndecodable = parked.ErrUndecodable

	// ErrIDInUse says that an edited message has an id that the consumer has
	// seen already.
	ErrIDInUse = parked.ErrIDInUse

	// ErrClaimed says that a message holds its ordering key and cannot be
	// discarded, or edited, before a handler has ended that is at a copy of it.
	ErrClaimed = parked.ErrClaimed

	// ErrNotRunning says that nobody runs the consumer that a message would be
	// given back to, or did in the last two minutes, so that it would leave the
	// quarantine for nothing. See Config.ReplayToAbsent.
	ErrNotRunning = errors.New("the consumer is not running")

	// ErrInsideDedup says that the middleware is inside of dedup's, where it
	// would have what a failed handler wrote committed. The handler is not
	// called, and the message is handed back.
	ErrInsideDedup = parked.ErrInsideDedup

	// ErrInsideRetry says that the middleware is inside of retry's, where it
	// would quarantine every failure at once, and nothing be tried again. The
	// handler is not called, and the message is held.
	ErrInsideRetry = parked.ErrInsideRetry
)

// page is the length of a page that does not say.
const page = 100

// List returns the messages in quarantine that match, in order of their ID.
func (s *Quarantine) List(ctx context.Context, f Filter) ([]Entry, error) {
	if f.Limit == 0 {
		f.Limit = page
	}
	if err := parked.Filter(f).Validate(); err != nil {
		return nil, fmt.Errorf("poison: list: %w", err)
	}
	entries, err := s.parked.List(ctx, parked.Filter(f), parked.Quarantined)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return shown(entries), nil
}

// Groups returns the messages in quarantine that match, grouped by their
// fingerprint and in order of it. Filter's Limit and AfterGroup are about
// groups.
func (s *Quarantine) Groups(ctx context.Context, f Filter) ([]Group, error) {
	if f.Limit == 0 {
		f.Limit = page
	}
	if err := parked.Filter(f).Validate(); err != nil {
		return nil, fmt.Errorf("poison: groups: %w", err)
	}
	groups, err := s.parked.Groups(ctx, parked.Filter(f), parked.Quarantined)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return grouped(groups), nil
}

// DryRun returns what ReplayMatching or DiscardMatching would be about, as
// groups, all of them. It changes nothing. Entries that were resolved, which a
// forced replay of IDs is about too, are not among them.
func (s *Quarantine) DryRun(ctx context.Context, f Filter) ([]Group, error) {
	if err := parked.Filter(f).ValidateAct(); err != nil {
		return nil, fmt.Errorf("poison: dry run: %w", err)
	}
	groups, err := s.parked.GroupsOf(ctx, parked.Filter(f), parked.Quarantined)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return grouped(groups), nil
}

// Get returns the entry with that ID, also after it was replayed, edited or
// discarded, or [ErrNotFound].
func (s *Quarantine) Get(ctx context.Context, id int64) (Entry, error) {
	entry, err := s.parked.Get(ctx, id)
	if err != nil {
		return Entry{}, fmt.Errorf("poison: %w", err)
	}
	return Entry(entry.Shown), nil
}

// Replay gives messages back to the consumers that failed them, due now and
// with fresh budgets. All of them or, if one is not in quarantine
// ([ErrNotFound]), cannot be decoded ([ErrUndecodable]), or is of a consumer that
// nobody runs ([ErrNotRunning]), none. It does not wait for what becomes of them;
// [Quarantine.Replayed] lists those that are still to be handled. See
// [Quarantine.ReplayMatching] for many.
func (s *Quarantine) Replay(ctx context.Context, act Act, ids ...int64) error {
	if err := errors.Join(parked.Act(act).Validate(), some(ids)); err != nil {
		return fmt.Errorf("poison: replay: %w", err)
	}
	ids = distinct(ids)
	if err := s.running(ctx, parked.Filter{IDs: ids}, parked.Quarantined); err != nil {
		return fmt.Errorf("poison: replay: %w", err)
	}
	if err := s.parked.Replay(ctx, parked.Act(act), ids); err != nil {
		return fmt.Errorf("poison: replay: %w", err)
	}
	s.instruments.replayed.Add(int64(len(ids)), 0)
	return nil
}

// running returns [ErrNotRunning] if nobody runs the consumer of an entry.
func (s *Quarantine) running(ctx context.Context, f parked.Filter, states ...string) error {
	if s.config.ReplayToAbsent {
		return nil
	}
	err := s.parked.CheckRunning(ctx, f, states...)
	if absent, ok := errors.AsType[*parked.AbsentError](err); ok {
		return fmt.Errorf("%w: %w; start it first, or set poison.Config.ReplayToAbsent", ErrNotRunning, absent)
	}
	return err
}

// Replayed returns the messages that were replayed, or edited, and not handled
// since, in order of their ID. State says whether one waits to be handled or
// behind another one of its ordering key.
func (s *Quarantine) Replayed(ctx context.Context, f Filter) ([]Entry, error) {
	if f.Limit == 0 {
		f.Limit = page
	}
	if err := parked.Filter(f).Validate(); err != nil {
		return nil, fmt.Errorf("poison: replayed: %w", err)
	}
	entries, err := s.parked.Replayed(ctx, parked.Filter(f))
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return shown(entries), nil
}

// Discard ends messages for good. They stay readable, and a late copy with the
// same id is not run: the inbox counts it as done. All of them or, if one is
// not in quarantine ([ErrNotFound]) or cannot be discarded yet ([ErrClaimed]),
// none.
func (s *Quarantine) Discard(ctx context.Context, act Act, ids ...int64) error {
	if err := errors.Join(parked.Act(act).Validate(), reasoned(act), some(ids)); err != nil {
		return fmt.Errorf("poison: discard: %w", err)
	}
	ids = distinct(ids)
	if err := s.parked.Discard(ctx, parked.Act(act), ids); err != nil {
		return fmt.Errorf("poison: discard: %w", err)
	}
	s.instruments.discarded.Add(int64(len(ids)), 0)
	return nil
}

// discardBatch is how many entries are discarded in one transaction.
const discardBatch = 100

// DiscardMatching discards what matches, as [Quarantine.Discard] does, and returns
// how many it were. Large numbers are discarded in several transactions: with
// an error, those that were counted are gone and the others are as they were,
// but for up to 100 if the outcome of a commit is unknown. What is stored after
// it began is left alone. [Quarantine.DryRun] says beforehand what it will be about.
func (s *Quarantine) DiscardMatching(ctx context.Context, act Act, f Filter) (discarded int, err error) {
	if err := errors.Join(parked.Act(act).Validate(), reasoned(act), parked.Filter(f).ValidateAct()); err != nil {
		return 0, fmt.Errorf("poison: discard: %w", err)
	}
	until, err := s.parked.Last(ctx)
	if err != nil {
		return 0, fmt.Errorf("poison: discard: %w", err)
	}
	for f.Limit == 0 || discarded < f.Limit {
		n := discardBatch
		if f.Limit > 0 {
			n = min(n, f.Limit-discarded)
		}
		some, last, err := s.parked.DiscardSome(ctx, parked.Act(act), parked.Filter(f), until, n)
		if err != nil {
			return discarded, fmt.Errorf("poison: discard: %w", err)
		}
		if last == 0 {
			break
		}
		discarded += some
		f.AfterID = last
		s.instruments.discarded.Add(int64(some), 0)
	}
	return discarded, nil
}

func some(ids []int64) error {
	if len(ids) == 0 {
		return errors.New("no IDs")
	}
	return nil
}

// distinct returns each once, in the order in which all lock them: who did so in
// another one could wait for one who waits for them.
func distinct(ids []int64) []int64 { return slices.Compact(slices.Sorted(slices.Values(ids))) }

func reasoned(act Act) error {
	if act.Why == "" {
		return errors.New("Why is empty: say why the message may be lost")
	}
	return nil
}
