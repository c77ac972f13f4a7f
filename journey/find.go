package journey

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/watermill-once/once/internal/dialect"
)

// search is one call of Find.
type search struct {
	ctx     context.Context
	tx      *sql.Tx
	dialect dialect.Dialect
	query   Query

	tables   map[string]bool // whether each table exists
	messages []*Message
	byID     map[string]*Message
	notes    []string

	// scanned contains messages that no index finds. The key is the id of the message that
	// caused them. The map is nil until these messages are read.
	scanned map[string][]foundMessage
}

// Find returns the messages that q selects, with their events.
func (j *Journeys) Find(ctx context.Context, q Query) (Answer, error) {
	q = q.withDefaults()
	err := q.validate()
	var answer Answer
	if err == nil {
		err = dialect.LeaveReplica(ctx, j.db, j.snapshot(ctx, func(tx *sql.Tx) error {
			s := &search{ctx: ctx, tx: tx, dialect: j.dialect, query: q, byID: map[string]*Message{}}
			err := s.run()
			answer = s.answer()
			return err
		}))
	}
	if err != nil {
		return Answer{}, fmt.Errorf("journey: find: %w", err)
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

// add adds a message to the answer, unless the answer already contains it or has
// reached the limit.
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

// seeds adds the messages that the query selects.
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

// caused adds the messages that were caused by the given messages.
func (s *search) caused(by []*Message) error {
	found, err := s.matching(selection{causes: s.ids(by)})
	for _, f := range found {
		if cause := s.byID[f.causedBy]; cause != nil {
			s.add(f.id, f.causedBy, cause.Depth+1)
		}
	}
	return err
}
