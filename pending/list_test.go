package pending_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/pending"
)

func TestListShowsWhyAMessageWaits(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		page, err := b.messages.List(b.Context(), pending.Filter{})
		require.NoError(b, err)
		require.Zero(b, page.Next)
		require.Equal(b, "due refused later head second third", ids(page.Messages))
		var states []pending.State
		for _, m := range page.Messages {
			states = append(states, m.State)
			require.Nil(b, m.Payload)
		}
		require.Equal(b, []pending.State{
			pending.Due, pending.BackingOff, pending.Delayed, pending.BackingOff, pending.Blocked, pending.Blocked,
		}, states)

		refused := page.Messages[1]
		require.Equal(b, 3, refused.Attempts)
		require.Equal(b, "no queue", refused.LastError)
		require.InDelta(b, 3600, time.Until(refused.DueAt).Seconds(), 60)
		require.InDelta(b, 3600, time.Since(refused.FailingSince).Seconds(), 60)
		require.True(b, page.Messages[0].DueAt.IsZero())
		head := page.Messages[3]
		require.Zero(b, head.BlockedBy)
		require.Equal(b, head.ID, page.Messages[5].BlockedBy)
		require.Equal(b, "k", head.OrderingKey)

		one, err := b.messages.Get(b.Context(), head.ID)
		require.NoError(b, err)
		require.Equal(b, "payload of head", string(one.Payload))
		require.Equal(b, len(one.Payload), one.Size)
		_, err = b.messages.Get(b.Context(), 99)
		require.ErrorIs(b, err, pending.ErrNotFound)
	})
}

func TestFilterSelects(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`UPDATE once_outbox SET created_at = ` + b.in(-2*time.Hour) + ` WHERE message_id = 'due'`)
		b.exec(`UPDATE once_outbox SET metadata = '{"once_tenant_id":"acme","once_aggregate_type":"order","once_aggregate_id":"7",
			"once_event_type":"placed"}' WHERE message_id = 'third'`)
		b.exec(`UPDATE once_outbox SET metadata = '{"odd":"\u0000"}' WHERE message_id = 'due'`)
		ago := time.Now().Add(-time.Hour)
		for want, f := range map[string]pending.Filter{
			"due":                                 {State: pending.Due},
			"refused head":                        {State: pending.BackingOff},
			"later":                               {State: pending.Delayed},
			"second third":                        {State: pending.Blocked},
			"due refused later":                   {Topic: "orders"},
			"head second third":                   {OrderingKey: "k"},
			"third":                               {MessageID: "third"},
			" third":                              {Tenant: "acme"},
			"third ":                              {AggregateType: "order", AggregateID: "7", EventType: "placed"},
			" ":                                   {AggregateType: "stock", AggregateID: "7"},
			"refused":                             {State: pending.BackingOff, Topic: "orders"},
			"due ":                                {CreatedBefore: ago},
			"refused later head second third":     {CreatedAfter: ago},
			"":                                    {IDs: []int64{}},
			"due later":                           {IDs: []int64{3, 1, 99}},
			"due refused later head second third": {All: true},
		} {
			page, err := b.messages.List(b.Context(), f)
			require.NoError(b, err)
			require.Equal(b, strings.TrimSpace(want), ids(page.Messages), "%+v", f)
			n, err := b.messages.Count(b.Context(), f)
			require.NoError(b, err)
			require.Equal(b, len(page.Messages), n.N, "%+v", f)
		}
	})
}

func TestPagesGoOnAtNext(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		var pages []string
		for f := (pending.Filter{Limit: 4}); ; {
			page, err := b.messages.List(b.Context(), f)
			require.NoError(b, err)
			pages = append(pages, ids(page.Messages))
			if f.AfterID = page.Next; f.AfterID == 0 {
				break
			}
		}
		require.Equal(b, []string{"due refused later head", "second third"}, pages)
	})
}

func TestBacklogCountsTopics(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		backlog, err := b.messages.Backlog(b.Context(), pending.Filter{})
		require.NoError(b, err)
		require.Equal(b, pending.Backlog{}, backlog)

		b.seed()
		b.exec(`UPDATE once_outbox SET created_at = ` + b.in(-time.Hour) + ` WHERE message_id = 'second'`)
		backlog, err = b.messages.Backlog(b.Context(), pending.Filter{})
		require.NoError(b, err)
		require.Len(b, backlog.Topics, 2)
		orders, stock := backlog.Topics[0], backlog.Topics[1]
		require.Less(b, orders.Oldest, time.Minute)
		require.InDelta(b, 3600, stock.Oldest.Seconds(), 60)
		orders.Oldest, stock.Oldest = 0, 0
		require.Equal(b, pending.Topic{Name: "orders", Pending: 3, Due: 1, BackingOff: 1, Delayed: 1}, orders)
		require.Equal(b, pending.Topic{Name: "stock", Pending: 3, BackingOff: 1, Blocked: 2}, stock)
	})
}

func TestBadInputIsRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		ctx, all := b.Context(), pending.Filter{All: true}
		cancel := func(act pending.Act, f pending.Filter, plan pending.Plan) error {
			_, err := b.messages.CancelMatching(ctx, act, f, plan)
			return err
		}
		retry := func(f pending.Filter) error {
			_, err := b.messages.RetryMatching(ctx, ann, f, pending.Plan{})
			return err
		}
		list := func(f pending.Filter) error {
			_, err := b.messages.List(ctx, f)
			return err
		}
		for want, err := range map[string]error{
			"pending: cancel: Actor is empty":            cancel(pending.Act{Why: "x"}, all, pending.Plan{}),
			"Why is empty":                               cancel(pending.Act{Actor: "ann"}, all, pending.Plan{}),
			"the Filter has no condition":                cancel(ann, pending.Filter{}, pending.Plan{}),
			"Plan.Rate is -1: negative":                  cancel(ann, all, pending.Plan{Rate: -1}),
			"no IDs: name at least one":                  b.messages.Cancel(ctx, ann),
			"pending: retry: no IDs":                     b.messages.Retry(ctx, ann),
			`State is "due": only backing_off and delay`: retry(pending.Filter{State: pending.Due}),
			`State is "dead", none of due, backing_off`:  list(pending.Filter{State: "dead"}),
			"Limit is -1: negative":                      list(pending.Filter{Limit: -1}),
			"AfterID is -1: negative":                    list(pending.Filter{AfterID: -1}),
			"All is set together with conditions":        list(pending.Filter{All: true, Topic: "t"}),
			"CreatedBefore is not after CreatedAfter":    list(pending.Filter{CreatedAfter: time.Now(), CreatedBefore: time.UnixMilli(1)}),
			"pending: retry: message 99: not found":      b.messages.Retry(ctx, ann, 2, 99),
			"pending: cancel: message 99: not found":     b.messages.Cancel(ctx, ann, 2, 99),
		} {
			require.ErrorContains(b, err, want)
		}
		require.Equal(b, "due refused later head second third", b.left())
		require.Empty(b, b.audits())
		require.Zero(b, b.count(`SELECT COUNT(*) FROM once_outbox WHERE message_id = 'refused' AND due_at < `+b.in(time.Minute)))
	})
	_, err := pending.New(nil, pending.Config{})
	require.EqualError(t, err, "pending: db is nil")
}

func TestBlockedKeysNameTheirHeads(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
			VALUES ('a', 77, 77, 'dead'), ('z', 78, 78, 'unknown')`)
		all, err := b.messages.BlockedKeys(b.Context(), pending.KeyFilter{})
		require.NoError(b, err)
		require.Len(b, all, 3)
		require.Equal(b, "a k z", all[0].OrderingKey+" "+all[1].OrderingKey+" "+all[2].OrderingKey)
		require.True(b, all[0].Dead)
		require.Empty(b, all[0].Topic)
		head := all[1]
		require.Equal(b, b.id("head"), head.Head)
		require.InDelta(b, time.Now().Unix(), head.BlockedAt.Unix(), 60)
		require.Equal(b, []any{"head", "stock", 3, "refused", false}, []any{head.MessageID, head.Topic, head.Attempts, head.Reason, head.Dead})
		require.InDelta(b, 3600, time.Until(head.DueAt).Seconds(), 60)

		for want, f := range map[string]pending.KeyFilter{"k": {OrderingKey: "k"}, "z": {AfterKey: "k"}, "a": {Limit: 1}} {
			some, err := b.messages.BlockedKeys(b.Context(), f)
			require.NoError(b, err)
			require.Len(b, some, 1)
			require.Equal(b, want, some[0].OrderingKey)
		}
		_, err = b.messages.BlockedKeys(b.Context(), pending.KeyFilter{Limit: -1})
		require.ErrorContains(b, err, "Limit is -1")
	})
}
