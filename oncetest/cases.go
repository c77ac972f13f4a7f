package oncetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// compareWithReference returns an error if the tables differ from the reference. The
// error begins with the parameter name, the name of the case. It ends with the parameter
// clue, a likely cause, if clue is not "".
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

// swapped delivers all messages, but the message at index i+1 before the message at index
// i. It then compares the tables with the reference.
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

// withFault delivers all messages, and injects the fault f into one of the deliveries. It
// then compares the tables with the reference.
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

// findOutsideWrites is called after the transaction was rolled back. It compares the
// tables with the parameter before, and describes the writes that remain, because the
// handler made them outside of the transaction. It returns "" if there are none.
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
