package oncetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// fits compares what there is now with the reference.
func (s *subject) fits(ctx context.Context, what, clue string) error {
	now, err := s.read(ctx)
	if err != nil {
		return err
	}
	difference := compare(now, s.once, "once gives")
	if difference == "" {
		return nil
	}
	if clue != "" {
		difference += "; " + clue
	}
	return fmt.Errorf("%s: %s", what, difference)
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
	return s.fits(ctx, what, "")
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
	return s.fits(ctx, what, "")
}

// swapped delivers two neighbours in the other order.
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
	return s.fits(ctx, what, "the effect depends on the order; if that is kept, say so with Config.Ordered")
}

// withFault delivers all messages, one of them with a fault.
func (s *subject) withFault(ctx context.Context, f fault) error {
	if err := s.reset(ctx); err != nil {
		return err
	}
	broken := newDelivery(&f)
	var left string // of the transaction that was rolled back
	for i, msg := range s.config.Messages {
		var (
			d    = newDelivery(nil)
			look func() error
		)
		if i == f.message {
			before, err := s.read(ctx)
			if err != nil {
				return err
			}
			d, look = broken, func() (err error) {
				left, err = s.outside(ctx, broken, before)
				return err
			}
		}
		if err := s.deliver(ctx, d, msg, look); err != nil {
			return fmt.Errorf("%s: message %q: %w", f, msg.UUID, err)
		}
	}
	clue := left
	if broken.ignored {
		clue = "the handler returned no error, although it met with one"
	}
	if err := s.fits(ctx, f.String(), clue); err != nil {
		return err
	}
	if left != "" { // and is written again, in the same way: not so if the message is given up
		return fmt.Errorf("%s: %s", f, left)
	}
	if !broken.hasStruck() {
		return errDidNotCome
	}
	return nil
}

// outside looks what is left of a transaction that was rolled back.
func (s *subject) outside(ctx context.Context, broken *delivery, before state) (string, error) {
	if broken.fault.kind == answerLost {
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
	text := "something is written outside of the transaction: when that was rolled back, " + left
	if broken.handlerRan() == 0 {
		text += "; the handler ran no statement in its transaction: does it use a db of its package in the place of tx?"
	}
	return text, nil
}
