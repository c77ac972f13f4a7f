package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// The metadata field that marks messages whose handler fails, and its values.
const (
	poisonHeader = "poison"
	hopeless     = "hopeless" // fails permanently, and goes to quarantine
	failing      = "failing"  // always fails, and is parked after its immediate attempts
)

var errPoison = errors.New("this message always fails")

// poisons measures how much failing messages slow down the other messages.
func (b *bench) poisons(ctx context.Context) ([]row, error) {
	none := series{id: "poison-none", what: "once.Consumer as it comes, " + b.kinds[0], unit: perSecond}
	some := series{id: "poison-1", what: "the same, 1 % of the messages always fail", unit: perSecond}
	err := b.turns(
		ctx,
		single(&none, func(ctx context.Context) (float64, error) { return b.poisoned(ctx, 0) }),
		single(&some, func(ctx context.Context) (float64, error) { return b.poisoned(ctx, max(2, b.consume/100)) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), some.against(none, 0.85)}, nil
}

// poisoned measures a consumer while messages fail. The parameter poison is the number of
// failing messages: half of them are marked hopeless, and half are marked failing. They
// are spread evenly among the other messages.
func (b *bench) poisoned(ctx context.Context, poison int) (_ float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	messages := newMessages(b.consume)
	for n := range poison {
		messages[n*len(messages)/poison].Metadata[poisonHeader] = []string{hopeless, failing}[n%2]
	}
	took, err := s.consume(ctx, messages, chainWith(rabbit.SubscriberConfig{}, poisonable))
	if err != nil {
		return 0, err
	}
	good := len(messages) - poison
	return rate(len(messages), took), s.hasEffects(ctx,
		effects{orders: good, inbox: good, quarantined: (poison + 1) / 2, waiting: poison / 2})
}

// poisonable is a handler that writes, and then fails if the message is marked.
func poisonable(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	err := business(ctx, tx)
	switch {
	case err != nil:
		return nil, err
	case msg.Metadata[poisonHeader] == hopeless:
		return nil, retry.Permanent(errPoison)
	case msg.Metadata[poisonHeader] == failing:
		return nil, errPoison
	}
	return nil, nil
}
