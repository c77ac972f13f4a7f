package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// ErrNoLog means that the sent log is empty, so there is nothing to compare.
var ErrNoLog = errors.New("the sent log is empty: set forwarder.Config.KeepSent in all forwarders")

// ErrNothingYet means that there is no period to compare. Either the two sides have no
// period for which both still have all their messages, or all messages are too recent.
var ErrNothingYet = errors.New("there is no time to compare yet")

// Sender is the sender's side of a comparison. It reads the outbox and the sent log.
type Sender struct {
	side

	config      SenderConfig
	instruments *instruments
}

// NewSender returns a Sender for the outbox in db. If config is invalid, the error
// names each invalid field. The tables must exist, see schema.Up.
func NewSender(db *sql.DB, config SenderConfig) (*Sender, error) {
	config = config.withDefaults()
	s, err := newSide(db, config.Schema, config.validate())
	if err != nil {
		return nil, err
	}
	return &Sender{s, config, newInstruments(config.MeterProvider)}, nil
}

// Result is the result of [Sender.Read].
type Result struct {
	// Reports contains a report for each consumer whose differences are known.
	Reports []Report

	// Question is the next question, about the remaining consumers. It is nil if no
	// consumers remain.
	Question *File
}

// Read reads an answer. If the two sides differ very much, the Result contains another
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
			sec.Lists = nil // the sides do not differ any more
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
