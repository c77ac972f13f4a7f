package main

import "context"

// keys measures the cost of keeping the order of keys. The cost arises because at most
// one message of each ordering key may be unconfirmed.
func (b *bench) keys(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	var (
		none = series{id: "keys-none", what: "forwarder, no ordering keys, " + kind, unit: perSecond}
		many = series{id: "keys-1000", what: "the same, 1000 ordering keys", unit: perSecond}
		raw  = series{id: "hot-raw", what: "raw, one confirm at a time, " + kind, unit: perSecond}
		hot  = series{id: "hot-key", what: "forwarder, all messages of one ordering key", unit: perSecond}
	)
	err := b.turns(
		ctx,
		single(&none, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.messages, 0) }),
		single(&many, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.messages, 1000) }),
		single(&raw, func(ctx context.Context) (float64, error) {
			return b.raw(ctx, kind, b.slow, func(ctx context.Context, r *rawChannel) error { return r.oneByOne(ctx) })
		}),
		single(&hot, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.slow, 1) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), many.against(none, 0.95), raw.row(), hot.against(raw, 0.85)}, nil
}
