package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"
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

// Question begins an exchange: it returns the file that [Receiver.Answer] takes.
// Several receivers can answer the same question. It reads the whole sent log since
// [SenderConfig].Since.
func (s *Sender) Question(ctx context.Context) (*File, error) { return s.question(ctx, s.config.Since) }

func (s *Sender) question(ctx context.Context, since time.Time) (*File, error) {
	f, err := s.begin(ctx, since)
	if err != nil {
		s.instruments.failed()
		return nil, fmt.Errorf("reconcile: question: %w", err)
	}
	return f, nil
}

func (s *Sender) begin(ctx context.Context, since time.Time) (*File, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	oldest, err := s.oldest(ctx)
	if err != nil {
		return nil, err
	}
	if oldest.IsZero() {
		return nil, ErrNoLog
	}
	w := window{ceilMinute(later(oldest.Add(margin), since)), floorMinute(now.Add(-s.config.Recent))}
	if !w.from.Before(w.until) {
		begins := fmt.Sprint("the sent log begins at ", oldest.Format(time.RFC3339))
		if since.After(oldest) {
			begins = fmt.Sprintf("the comparison begins at %v (Since, or when the consumers began to remember messages)", since.Format(time.RFC3339))
		}
		return nil, fmt.Errorf("%s, and messages sent after %v are left out (Recent): %w", begins, w.until.Format(time.RFC3339), ErrNothingYet)
	}
	f := &File{fileData{
		Format: fileFormat, Version: fileVersion, Kind: question, Round: 1,
		WrittenAt: now, Topics: slices.Clone(s.config.Topics), From: w.from, Until: w.until,
	}}
	if f.data.Sender, err = s.fingerprint(ctx); err != nil {
		return nil, err
	}
	t, err := summarize(ctx, s, w)
	if err != nil {
		return nil, err
	}
	f.data.Groups, f.data.Sent = encodeTree(t), hours(t)
	return f, nil
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

// oldest returns the time of the oldest row of the sent log, or zero. Ids ascend
// with sent_at.
func (s *Sender) oldest(ctx context.Context) (time.Time, error) {
	var ms int64
	err := s.one(ctx, s.dialect.SQL(`SELECT {millis sent_at} FROM {outbox_sent} ORDER BY id LIMIT 1`), nil, &ms)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return fromMillis(ms), err
}

// scan reads the sent log in the order of the ids, so that the copies of a message
// that was sent again follow each other.
func (s *Sender) scan(ctx context.Context, w window, spans []span, details bool, each func(*record) error) error {
	var q query
	id := `message_id`
	if !s.dialect.SQLite() {
		id += ` COLLATE "C"`
	}
	columns := `CASE WHEN sent_at >= ` + q.millis(w.from) + ` AND sent_at < ` + q.millis(w.until) + ` THEN 1 ELSE 0 END`
	where := `topic {among ` + q.arg(s.dialect.Strings(s.config.Topics)) + ` text}` + q.spans(id, spans)
	if details {
		columns += `, {millis sent_at}, id, topic`
	} else {
		where += ` AND sent_at >= ` + q.millis(w.from.Add(-early))
	}
	var (
		last, next record
		raw        sql.RawBytes
		in         int
		spare      []byte // the buffer of the id before last
		some       bool
	)
	err := s.rows(ctx, func(scan func(dest ...any) error) error {
		next = record{id: spare}
		var err error
		if details {
			err = scan(&raw, &in, &next.firstAt, &next.log, &next.topic)
			next.lastAt = next.firstAt
		} else {
			err = scan(&raw, &in)
		}
		if err != nil {
			return err
		}
		next.in = in == 1
		if some && string(raw) == string(last.id) {
			last.again(&next)
			return nil
		}
		if some {
			err = each(&last)
		}
		next.id = append(next.id[:0], raw...)
		spare, last, some = last.id, next, true
		return err
	}, s.dialect.SQL(`SELECT message_id, `+columns+` FROM {outbox_sent} WHERE `+where+` ORDER BY `+id), q.args...)
	if err == nil && some {
		err = each(&last)
	}
	return err
}

// again adds another row of the sent log to r.
func (r *record) again(other *record) {
	r.in = r.in || other.in
	r.firstAt, r.lastAt = min(r.firstAt, other.firstAt), max(r.lastAt, other.lastAt)
	if other.log > r.log {
		r.log, r.topic = other.log, other.topic
	}
}
