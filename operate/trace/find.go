package trace

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate/internal/rows"
	"github.com/watermill-once/once/schema"
)

// Finder finds the events of messages in one database. If the producer and the consumers have
// separate databases, ask a Finder for each.
type Finder struct {
	db rows.DB
}

// New returns a Finder for db. If config is invalid, the error names each invalid
// field. If you use roles, the login needs the role operator.
func New(db *sql.DB, config schema.Config) (*Finder, error) {
	d, err := rows.Open("trace", db, config)
	if err != nil {
		return nil, err
	}
	return &Finder{d}, nil
}

// A message that moves to another table during a snapshot appears in only one.
func (j *Finder) snapshot(ctx context.Context, f func(tx *sql.Tx) error) error {
	return j.db.Snapshot(ctx, j.db.DB, f)
}

// Query says which messages to look for. Set exactly one of MessageID, AggregateID and Tenant.
type Query struct {
	// MessageID is the id of one message.
	MessageID string

	// AggregateType and AggregateID are those of outbox.SetAggregate. Without a type, aggregates of
	// all types are selected.
	AggregateType, AggregateID string

	// Tenant is that of outbox.SetTenant. Find searches only the latest 50,000 rows of the sent
	// log, and the latest 20,000 parked messages that are not in quarantine.
	Tenant string

	// Causes adds the messages that the found ones caused, and so on, up to Limit messages.
	Causes bool

	// Limit is the maximum number of messages, the latest if more match. Defaults to 100.
	Limit int

	// OutboxRows is how many rows of the outbox to search, from the oldest on. Defaults to 100,000
	// for a MessageID without Causes, and otherwise to 20,000, because the metadata of each row
	// must be read.
	OutboxRows int
}

func (q Query) withDefaults() Query {
	q.Limit = cmp.Or(q.Limit, 100)
	if q.MessageID != "" && !q.Causes {
		q.OutboxRows = cmp.Or(q.OutboxRows, 100_000)
	}
	q.OutboxRows = cmp.Or(q.OutboxRows, 20_000)
	return q
}

func (q Query) validate() error {
	var errs []error
	set := 0
	for _, value := range []string{q.MessageID, q.AggregateID, q.Tenant} {
		if value != "" {
			set++
		}
	}
	if set != 1 {
		errs = append(errs, fmt.Errorf("%d of MessageID, AggregateID and Tenant are set: set one", set))
	}
	for _, text := range []struct{ name, value string }{
		{"MessageID", q.MessageID}, {"AggregateType", q.AggregateType}, {"AggregateID", q.AggregateID}, {"Tenant", q.Tenant},
	} {
		if parkedrows.Clean(text.value, len(text.value)) != text.value {
			errs = append(errs, fmt.Errorf("%s is %.40q: no text that a database can store", text.name, text.value))
		}
	}
	if q.AggregateType != "" && q.AggregateID == "" {
		errs = append(errs, errors.New("AggregateType is set without AggregateID"))
	}
	if q.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: negative", q.Limit))
	}
	if q.OutboxRows < 0 {
		errs = append(errs, fmt.Errorf("OutboxRows is %d: negative", q.OutboxRows))
	}
	return errors.Join(errs...)
}

type search struct {
	ctx     context.Context
	tx      *sql.Tx
	dialect dialect.Dialect
	query   Query

	tables   map[string]bool // whether each table exists
	messages []*Message
	byID     map[string]*Message
	notes    []string

	// scanned has messages that no index finds, by their cause, or nil until they are read.
	scanned map[string][]foundMessage
}

// Find returns the messages that q selects, with their events.
func (j *Finder) Find(ctx context.Context, q Query) (Answer, error) {
	q = q.withDefaults()
	err := q.validate()
	var answer Answer
	if err == nil {
		err = j.snapshot(ctx, func(tx *sql.Tx) error {
			s := &search{ctx: ctx, tx: tx, dialect: j.db.Dialect, query: q, byID: map[string]*Message{}}
			err := s.run()
			answer = s.answer()
			return err
		})
	}
	if err != nil {
		return Answer{}, fmt.Errorf("trace: find: %w", err)
	}
	return answer, nil
}

func (s *search) run() error {
	if err := s.existing(); err != nil {
		return err
	}
	if err := s.dialect.InOrder(s.ctx, s.tx); err != nil {
		return err
	}
	if err := s.seeds(); err != nil {
		return err
	}
	for from := 0; s.query.Causes && from < len(s.messages); {
		level := s.messages[from:]
		from = len(s.messages)
		if err := s.caused(level); err != nil {
			return err
		}
	}
	if len(s.messages) == 0 {
		return nil
	}
	for _, read := range []func(ids []string) error{s.outboxRows, s.dead, s.sent, s.parked, s.replaced, s.inbox, s.audit, s.registered} {
		if err := read(s.ids(s.messages)); err != nil {
			return err
		}
	}
	return nil
}

func (s *search) ids(of []*Message) (ids []string) {
	for _, m := range of {
		ids = append(ids, m.ID)
	}
	return ids
}

func (s *search) add(id, causedBy string, depth int) {
	if _, known := s.byID[id]; known || id == "" {
		return
	}
	if len(s.messages) == s.query.Limit {
		s.notef("More messages match than the limit of %d: the others are left out.", s.query.Limit)
		return
	}
	m := &Message{ID: id, CausedBy: causedBy, Depth: depth}
	s.messages, s.byID[id] = append(s.messages, m), m
}

func (s *search) notef(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(s.notes, text) {
		s.notes = append(s.notes, text)
	}
}

func (s *search) seeds() error {
	q := s.query
	if q.MessageID != "" {
		s.add(q.MessageID, "", 0)
		return nil
	}
	found, err := s.matching(selection{aggregateType: q.AggregateType, aggregateID: q.AggregateID, tenant: q.Tenant})
	for _, f := range found {
		s.add(f.id, f.causedBy, 0)
	}
	return err
}

func (s *search) caused(by []*Message) error {
	found, err := s.matching(selection{causes: s.ids(by)})
	for _, f := range found {
		if cause := s.byID[f.causedBy]; cause != nil {
			s.add(f.id, f.causedBy, cause.Depth+1)
		}
	}
	return err
}
