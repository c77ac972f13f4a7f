package main

import (
	"context"

	"github.com/watermill-once/once/rabbit"
)

// duplicates measures how fast the inbox skips messages that were handled before.
func (b *bench) duplicates(ctx context.Context) ([]row, error) {
	fresh := series{id: "duplicates-new", what: "once.Consumer as it comes, new messages, " + b.kinds[0], unit: perSecond}
	again := series{id: "duplicates-skipped", what: "the same with the same messages once more", unit: perSecond}
	err := b.turns(ctx, measurement{[]*series{&fresh, &again}, b.twice})
	if err != nil {
		return nil, err
	}
	return []row{fresh.row(), again.against(fresh, 1.2)}, nil
}

// twice consumes all messages, then their duplicates, and returns both rates.
func (b *bench) twice(ctx context.Context) (rates []float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return nil, err
	}
	defer closing(s, &err)
	messages := newMessages(b.consume)
	for range 2 {
		took, err := s.consume(ctx, messages, chain(rabbit.SubscriberConfig{}))
		if err != nil {
			return nil, err
		}
		if err := s.hasEffects(ctx, effects{orders: len(messages), inbox: len(messages)}); err != nil {
			return nil, err
		}
		rates = append(rates, rate(len(messages), took))
	}
	return rates, nil
}
