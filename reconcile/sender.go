package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// ErrNoLog says that the sent log is empty, so there is nothing to compare.
var ErrNoLog = errors.New("the sent log is empty: set forwarder.Config.KeepSent in all forwarders")

// ErrNothingYet says that no time is left to compare: both sides remember too
// little, or everything is too recent.
var ErrNothingYet = errors.New("there is no time to compare yet")

// Sender is the side that has the outbox and the sent log.
type Sender struct {
	side

	config      SenderConfig
	instruments *instruments
}

// NewSender returns the sender in db, or an error that names each field of config
// that cannot be used. The tables must exist, see schema.Up.
func NewSender(db *sql.DB, config SenderConfig) (*Sender, error) {
	config = config.withDefaults()
	s, err := newSide(db, config.Schema, config.validate())
	if err != nil {
		return nil, err
	}
	return &Sender{s, config, newInstruments(config.MeterProvider)}, nil
}

// Result is what the answer of a receiver has led to.
type Result struct {
	// Reports are about the consumers whose differences are known.
	Reports []Report

	// Question is the next question, about the other consumers. It is nil if there
	// are none.
	Question *File
}

// Read reads an answer. If the sides differ very much, the Result contains another
// question, which the same receiver must answer.
func (s *Sender) Read(ctx context.Context, f *File) (Result, error) {
	r, err := s.read(ctx, f)
	if err != nil {
		s.instruments.failed()
		return Result{}, fmt.Errorf("reconcile: read: %w", err)
	}
	s.instruments.reported(r.Reports)
	return r, nil
}

func (s *Sender) read(ctx context.Context, f *File) (Result, error) {
	if err := f.expect(answer); err != nil {
		return Result{}, err
	}
	mine, err := s.fingerprint(ctx)
	if err != nil {
		return Result{}, err
	}
	switch {
	case f.data.Sender != mine:
		return Result{}, fmt.Errorf("it answers the question of another sender, or of other tables: %w", ErrWrongStep)
	case !slices.Equal(f.data.Topics, s.config.Topics):
		return Result{}, fmt.Errorf("it is about the topics %q, this sender is configured for %q: %w",
			f.data.Topics, s.config.Topics, ErrWrongStep)
	}
	next := f.data
	next.Kind, next.Round, next.Groups, next.Consumers = question, f.data.Round+1, nil, nil
	var r Result
	for _, sec := range f.data.Consumers {
		w := window{later(f.data.From, sec.From), f.data.Until}
		if !sec.Done {
			theirs, err := decodeTree(sec.Groups)
			if err != nil {
				return Result{}, fmt.Errorf("consumer %q: %w: %w", sec.Consumer, ErrDamaged, err)
			}
			t, err := ask(ctx, s, w, theirs)
			if err != nil {
				return Result{}, fmt.Errorf("consumer %q: %w", sec.Consumer, err)
			}
			if len(t.cells) > 0 {
				sec.Groups = encodeTree(t)
				next.Consumers = append(next.Consumers, sec)
				continue
			}
			sec.Lists = nil // the difference is gone
		}
		report, err := s.report(ctx, f, sec, w)
		if err != nil {
			return Result{}, fmt.Errorf("consumer %q: %w", sec.Consumer, err)
		}
		r.Reports = append(r.Reports, report)
	}
	if len(next.Consumers) > 0 {
		if next.Round > mostRounds {
			return Result{}, fmt.Errorf("no result after %d questions: %w", mostRounds, ErrTooDifferent)
		}
		r.Question = &File{next}
	}
	return r, nil
}
