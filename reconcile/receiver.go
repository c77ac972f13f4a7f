package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrUnknownConsumer means that the tables contain no data of a consumer.
var ErrUnknownConsumer = errors.New("no such consumer")

// ErrOtherTopics means that a consumer also receives topics that the sender does not
// compare.
var ErrOtherTopics = errors.New("it also receives other topics")

// Receiver is the consumers' side of a comparison. It reads their inbox and their
// parked messages.
type Receiver struct {
	side

	config ReceiverConfig
	limits limits
}

// NewReceiver returns a Receiver for the consumers in db. If config is invalid, the
// error names each invalid field. The tables must exist, see schema.Up.
func NewReceiver(db *sql.DB, config ReceiverConfig) (*Receiver, error) {
	config = config.withDefaults()
	s, err := newSide(db, config.Schema, config.validate())
	if err != nil {
		return nil, err
	}
	return &Receiver{s, config, limits{listAtOnce, config.Limit}}, nil
}

// Answer returns the answer to a question of a sender. It fails with
// [ErrUnknownConsumer] or [ErrOtherTopics] if a consumer cannot be compared with the
// topics of the question.
func (r *Receiver) Answer(ctx context.Context, f *File) (*File, error) {
	a, err := r.answer(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("reconcile: answer: %w", err)
	}
	return a, nil
}

func (r *Receiver) answer(ctx context.Context, f *File) (*File, error) {
	if err := f.expect(question); err != nil {
		return nil, err
	}
	mine, err := r.fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	if f.data.Round > 1 && f.data.Receiver != mine {
		return nil, fmt.Errorf("%s is for another receiver, or for other tables: %w", f.Name(), ErrWrongStep)
	}
	a := &File{f.data}
	a.data.Kind, a.data.Receiver, a.data.Groups = answer, mine, nil
	if a.data.WrittenAt, err = r.now(ctx); err != nil {
		return nil, err
	}
	a.data.Consumers, err = r.sections(f)
	if err != nil {
		return nil, err
	}
	for i := range a.data.Consumers {
		sec := &a.data.Consumers[i]
		if err := r.compare(ctx, f, a.data.WrittenAt, sec); err != nil {
			return nil, fmt.Errorf("consumer %q: %w", sec.Consumer, err)
		}
	}
	return a, nil
}

// sections returns one section for each consumer to which the question applies.
func (r *Receiver) sections(f *File) ([]section, error) {
	if f.data.Round > 1 {
		for _, sec := range f.data.Consumers {
			if !slices.Contains(r.config.Consumers, sec.Consumer) {
				return nil, fmt.Errorf("the question is about consumer %q, which is not configured: %w", sec.Consumer, ErrWrongStep)
			}
		}
		return slices.Clone(f.data.Consumers), nil
	}
	var all []section
	for _, name := range r.config.Consumers {
		all = append(all, section{Consumer: name, Groups: f.data.Groups})
	}
	return all, nil
}

// compare replaces the groups of the question in the section sec with the answer of its
// consumer.
func (r *Receiver) compare(ctx context.Context, f *File, now time.Time, sec *section) error {
	c := consumerOf(r, sec.Consumer, f.data.Topics)
	first := f.data.Round == 1
	if first {
		if err := c.check(ctx, f.data.From); err != nil {
			return err
		}
		var err error
		if sec.Keys, err = c.keys(ctx); err != nil {
			return err
		}
		if sec.Parked, err = c.parked(ctx); err != nil {
			return err
		}
	}
	since, err := c.since(ctx, now)
	if err != nil {
		return err
	}
	sec.From = later(f.data.From, since)
	w := window{sec.From, f.data.Until}
	if !w.from.Before(w.until) {
		return fmt.Errorf("it remembers messages since %v only, the question is about the time until %v: %w",
			since.Format(time.RFC3339), w.until.Format(time.RFC3339), ErrNothingYet)
	}
	theirs, err := decodeTree(sec.Groups)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	reply, err := respond(ctx, c, w, theirs, first, r.limits)
	if err != nil {
		return err
	}
	if first {
		sec.Handled = reply.hours
	}
	sec.Groups, sec.Lists, sec.Done = nil, nil, reply.groups == nil
	if sec.Done {
		sec.Lists = encodeLists(reply.lists)
	} else {
		sec.Groups = encodeTree(reply.groups)
	}
	return nil
}

// Since returns the beginning of the period for which the tables of all consumers of r
// are complete. In this period, the tables of each consumer contain every message of
// the given topics that the consumer has handled.
func (r *Receiver) Since(ctx context.Context, topics []string) (time.Time, error) {
	now, err := r.now(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("reconcile: %w", err)
	}
	var since time.Time
	for _, name := range r.config.Consumers {
		from, err := consumerOf(r, name, topics).since(ctx, now)
		if err != nil {
			return time.Time{}, fmt.Errorf("reconcile: consumer %q: %w", name, err)
		}
		since = later(since, from)
	}
	return since, nil
}
