package oncetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/schema"
)

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

// makeReference delivers every message once, and stores the state. A second run with another state
// is an error: the cases would show nothing.
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

// maxDeliveries is so high that a handler that fails only sometimes succeeds before.
const maxDeliveries = 10

// deliver repeats msg until it is handled without an error. afterFault, if not nil, is called after
// the delivery with the fault.
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
		_, err = chain.Call(handle, copied)
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

func (s *subject) explain(err error) error {
	if s.dialect.SQLite() && dialect.Contended(err) {
		return fmt.Errorf("%w; does the handler write outside of its transaction, which has the only write lock?", err)
	}
	return err
}

// name begins the error, and clue, a likely cause or "", ends it.
func (s *subject) compareWithReference(ctx context.Context, name, clue string) error {
	now, err := s.read(ctx)
	if err != nil {
		return err
	}
	difference := compare(now, s.reference, "one delivery gives")
	if difference == "" {
		return nil
	}
	if clue != "" {
		difference += "; " + clue
	}
	return fmt.Errorf("%s: %s", name, difference)
}

func (s *subject) twiceInARow(ctx context.Context) error {
	const what = "delivered twice in a row"
	if err := s.reset(ctx); err != nil {
		return err
	}
	for _, msg := range s.config.Messages {
		for range 2 {
			if err := s.deliver(ctx, newDelivery(nil), msg, nil); err != nil {
				return fmt.Errorf("%s: message %q: %w", what, msg.UUID, err)
			}
		}
	}
	return s.compareWithReference(ctx, what, "")
}

func (s *subject) twiceAtOnce(ctx context.Context) error {
	const what = "delivered twice at once"
	if err := s.reset(ctx); err != nil {
		return err
	}
	for _, msg := range s.config.Messages {
		first, second := newDelivery(nil), newDelivery(nil)
		first.other, second.other = second, first
		other := make(chan error, 1)
		go func() { other <- s.deliver(ctx, second, msg, nil) }()
		err := s.deliver(ctx, first, msg, nil)
		if err := errors.Join(err, <-other); err != nil {
			return fmt.Errorf("%s: message %q: %w", what, msg.UUID, err)
		}
	}
	return s.compareWithReference(ctx, what, "")
}

func (s *subject) swapped(ctx context.Context, i int) error {
	if err := s.reset(ctx); err != nil {
		return err
	}
	messages := append([]*message.Message(nil), s.config.Messages...)
	messages[i], messages[i+1] = messages[i+1], messages[i]
	what := fmt.Sprintf("message %q delivered before %q", messages[i].UUID, messages[i+1].UUID)
	for _, msg := range messages {
		if err := s.deliver(ctx, newDelivery(nil), msg, nil); err != nil {
			return fmt.Errorf("%s: message %q: %w", what, msg.UUID, err)
		}
	}
	return s.compareWithReference(ctx, what, "the effect depends on the order of messages; if their order is guaranteed, set Config.Ordered")
}

func (s *subject) withFault(ctx context.Context, f fault) error {
	if err := s.reset(ctx); err != nil {
		return err
	}
	broken := newDelivery(&f)
	var left string // describes writes that a rollback did not undo
	for i, msg := range s.config.Messages {
		var (
			d          = newDelivery(nil)
			afterFault func() error
		)
		if i == f.message {
			before, err := s.read(ctx)
			if err != nil {
				return err
			}
			d, afterFault = broken, func() (err error) {
				left, err = s.findOutsideWrites(ctx, broken, before)
				return err
			}
		}
		if err := s.deliver(ctx, d, msg, afterFault); err != nil {
			return fmt.Errorf("%s: message %q: %w", f, msg.UUID, err)
		}
	}
	clue := left
	if broken.ignored {
		clue = "the handler returned no error, although a statement failed"
	}
	if err := s.compareWithReference(ctx, f.String(), clue); err != nil {
		return err
	}
	if left != "" { // report it even if the next delivery writes the same rows again, because a message may also be given up on
		return fmt.Errorf("%s: %s", f, left)
	}
	if !broken.faultInjected() {
		return errNotInjected
	}
	return nil
}

// findOutsideWrites describes the writes that remain after a rollback, compared with before,
// because the handler made them outside of the transaction.
func (s *subject) findOutsideWrites(ctx context.Context, broken *delivery, before state) (string, error) {
	if broken.fault.kind == lostAfterCommit {
		return "", nil
	}
	now, err := s.read(ctx)
	if err != nil {
		return "", err
	}
	left := compare(now, before, "there had been")
	if left == "" {
		return "", nil
	}
	text := "the handler writes outside of its transaction: after the rollback, " + left
	if broken.handlerStatements() == 0 {
		text += "; the handler ran no statement in its transaction: does it use a global *sql.DB instead of tx?"
	}
	return text, nil
}
