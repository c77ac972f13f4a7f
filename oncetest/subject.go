package oncetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/schema"
)

// subject is the handler to test, with its inbox and its database.
type subject struct {
	config  Config
	dialect dialect.Dialect
	db      *sql.DB // config.DB, with wrapped connections
	inbox   *dedup.Inbox
	tables  []table

	before    state // state with which every case begins
	reference state // state after one delivery of each message
	faults    []fault
}

func newSubject(ctx context.Context, config Config) (*subject, error) {
	config = config.withDefaults()
	err := config.validate()
	if err != nil {
		return nil, err
	}
	s := &subject{config: config}
	if s.dialect, err = dialect.New(config.Dedup.Schema); err != nil {
		return nil, err
	}
	if err := schema.Check(ctx, config.DB, config.Dedup.Schema); err != nil {
		return nil, err
	}
	s.db = wrap(config.DB)
	if s.inbox, err = dedup.New(s.db, config.Dedup); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// reset puts the database into the state in which every case begins.
func (s *subject) reset(ctx context.Context) error {
	if err := s.config.Reset(ctx, s.config.DB); err != nil {
		return fmt.Errorf("oncetest: Reset: %w", err)
	}
	err := s.dialect.Write(ctx, s.config.DB, func(tx *sql.Tx) error {
		for _, query := range []string{`DELETE FROM {inbox}`, `DELETE FROM {outbox}`} {
			if _, err := tx.ExecContext(ctx, s.dialect.SQL(query)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("oncetest: empty inbox and outbox: %w", err)
	}
	if s.before == nil {
		return nil
	}
	now, err := s.read(ctx)
	if err != nil {
		return err
	}
	if difference := compare(now, s.before, "the first time gave"); difference != "" {
		return fmt.Errorf("oncetest: Reset does not restore the same state each time: %s", difference)
	}
	return nil
}

// makeReference delivers every message once, and stores the resulting state as the
// reference. Then it resets the database and delivers all messages again. If the second
// state differs, makeReference returns an error: without a fault the results already
// differ, so the cases would show nothing.
func (s *subject) makeReference(ctx context.Context) (err error) {
	if err := s.reset(ctx); err != nil { // first, because Reset may create tables that findTables must find
		return err
	}
	if s.tables, err = s.findTables(ctx); err != nil {
		return fmt.Errorf("oncetest: %w", err)
	}
	if s.before, err = s.read(ctx); err != nil {
		return err
	}
	if _, s.reference, err = s.deliverOnce(ctx); err != nil {
		return err
	}
	if compare(s.reference, s.before, "") == "" {
		return errors.New("oncetest: delivered once: no table changes, so there is nothing to compare: check Config.Tables")
	}
	if err := s.reset(ctx); err != nil {
		return err
	}
	faults, again, err := s.deliverOnce(ctx)
	if err != nil {
		return err
	}
	if difference := compare(again, s.reference, "the first time gave"); difference != "" {
		return fmt.Errorf("oncetest: delivered once, and a second time on the same state: %s; the handler must depend "+
			"only on the message and the database, not on memory or chance", difference)
	}
	s.faults = faults
	return nil
}

// deliverOnce delivers every message once. It returns the faults that can be injected,
// and the resulting state.
func (s *subject) deliverOnce(ctx context.Context) ([]fault, state, error) {
	var all []fault
	for i, msg := range s.config.Messages {
		d := newDelivery(nil)
		if err := s.deliver(ctx, d, msg, nil); err != nil {
			return nil, nil, fmt.Errorf("oncetest: delivered once: message %q: %w", msg.UUID, err)
		}
		all = append(all, faults(i, msg.UUID, d.statements)...)
	}
	after, err := s.read(ctx)
	return all, after, err
}

// maxDeliveries is the number of deliveries after which the test gives up on a message.
// It is so high that a handler that fails only sometimes succeeds before.
const maxDeliveries = 10

// deliver delivers the message msg again and again until it is handled without an error.
// If the parameter afterFault is not nil, deliver calls it after the delivery in which
// the fault was injected.
func (s *subject) deliver(ctx context.Context, d *delivery, msg *message.Message, afterFault func() error) error {
	defer d.announce()
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	handle := s.inbox.Middleware(d.handler(s.config.Handler))
	var err error
	for n := range maxDeliveries {
		copied := msg.Copy()
		copied.Payload = append([]byte(nil), msg.Payload...) // a handler may change its payload
		copied.SetContext(d.context(ctx))
		_, err = disposition.Call(handle, copied)
		if d.misuse != nil {
			return d.misuse
		}
		if err == nil {
			return nil
		}
		if afterFault != nil && d.faultInjected() {
			if err := afterFault(); err != nil {
				return err
			}
			afterFault = nil
		}
		pause := time.NewTimer(time.Millisecond << n) // a duplicate may hold a lock that this delivery needs
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("it did not succeed within %v: %w", s.config.Timeout, s.explain(err))
		}
	}
	return fmt.Errorf("it failed %d times, the last time with: %w", maxDeliveries, s.explain(err))
}

// explain adds the likely cause to the text of an error.
func (s *subject) explain(err error) error {
	if s.dialect.SQLite() && dialect.Contended(err) {
		return fmt.Errorf("%w; does the handler write outside of its transaction, which has the only write lock?", err)
	}
	return err
}
