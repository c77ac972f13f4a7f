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

// subject is the handler with its inbox and its database.
type subject struct {
	config  Config
	dialect dialect.Dialect
	db      *sql.DB // config.DB, wrapped
	inbox   *dedup.Inbox
	tables  []table

	before state // what every case begins with
	once   state // the reference
	faults []fault
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

// reset brings the database back to where every case begins.
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
		return fmt.Errorf("oncetest: Reset does not bring the same state each time: %s", difference)
	}
	return nil
}

// refer makes the reference: once, and again, because an effect that is not the
// same twice cannot be compared with any other.
func (s *subject) refer(ctx context.Context) (err error) {
	if err := s.reset(ctx); err != nil { // it may create tables
		return err
	}
	if s.tables, err = s.findTables(ctx); err != nil {
		return fmt.Errorf("oncetest: %w", err)
	}
	if s.before, err = s.read(ctx); err != nil {
		return err
	}
	if _, s.once, err = s.deliverOnce(ctx); err != nil {
		return err
	}
	if compare(s.once, s.before, "") == "" {
		return errors.New("oncetest: delivered once: no table changes, so there is nothing to compare: are all tables in Tables?")
	}
	if err := s.reset(ctx); err != nil {
		return err
	}
	faults, again, err := s.deliverOnce(ctx)
	if err != nil {
		return err
	}
	if difference := compare(again, s.once, "the first time gave"); difference != "" {
		return fmt.Errorf("oncetest: delivered once, and a second time on the same state: %s; the handler must depend "+
			"on nothing but the message and the database: not on memory, not on chance", difference)
	}
	s.faults = faults
	return nil
}

// deliverOnce delivers every message, and returns what can go wrong with them.
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

// tries is how often a message is delivered until it is given up: as with
// brokers, more often than what fails by chance does so in a row.
const tries = 10

// deliver delivers msg until it is done. After a fault has come, it first calls
// look.
func (s *subject) deliver(ctx context.Context, d *delivery, msg *message.Message, look func() error) error {
	defer d.arrive()
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	handle := s.inbox.Middleware(d.handler(s.config.Handler))
	var err error
	for try := range tries {
		copied := msg.Copy()
		copied.Payload = append([]byte(nil), msg.Payload...) // a handler may write into it
		copied.SetContext(d.context(ctx))
		_, err = disposition.Call(handle, copied)
		if d.misuse != nil {
			return d.misuse
		}
		if err == nil {
			return nil
		}
		if look != nil && d.hasStruck() {
			if err := look(); err != nil {
				return err
			}
			look = nil
		}
		pause := time.NewTimer(time.Millisecond << try) // another copy may have the lock
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("it is not done within %v: %w", s.config.Timeout, s.explained(err))
		}
	}
	return fmt.Errorf("it failed %d times, the last time with: %w", tries, s.explained(err))
}

// explained says what an error mostly comes from.
func (s *subject) explained(err error) error {
	if s.dialect.SQLite() && dialect.Contended(err) {
		return fmt.Errorf("%w; does the handler write outside of its transaction, which has the only lock?", err)
	}
	return err
}
