package parked_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/parked"
)

func TestListShowsEachState(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		require.Equal(b, "due:waiting failed:waiting head:waiting second:held third:held poison:quarantined done:resolved gone:discarded",
			b.states(parked.Filter{}))
		claims := b.claim(time.Hour)
		require.Len(b, claims, 1)
		page, err := b.messages.List(b.Context(), parked.Filter{})
		require.NoError(b, err)
		require.Zero(b, page.Next)

		due, failed, third := page.Messages[0], page.Messages[1], page.Messages[4]
		require.True(b, due.Claimed)
		require.Equal(b, "host/1/a", due.ClaimedBy)
		require.Equal(b, 1, due.Crashes)
		require.Nil(b, due.Message)
		require.False(b, failed.Claimed)
		require.Equal(b, 3, failed.Attempts)
		require.Equal(b, "no answer", failed.Error)
		require.InDelta(b, 3600, time.Until(failed.DueAt).Seconds(), 60)
		require.InDelta(b, 60, time.Since(failed.LastFailedAt).Seconds(), 60)
		require.Equal(b, "k", third.OrderingKey)
		require.Equal(b, b.id("head"), third.BlockedBy)
		require.Zero(b, page.Messages[2].BlockedBy)

		one, err := b.messages.Get(b.Context(), third.ID)
		require.NoError(b, err)
		require.Equal(b, "payload of third", string(one.Message.Payload))
		require.NotZero(b, one.Size)
		_, err = b.messages.Get(b.Context(), 99)
		require.ErrorIs(b, err, parked.ErrNotFound)
		b.exec(`UPDATE once_parked SET envelope = '' WHERE message_id = 'third'`)
		one, err = b.messages.Get(b.Context(), third.ID)
		require.NoError(b, err)
		require.Error(b, one.MessageErr)
	})
}

func TestFilterSelects(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`UPDATE once_parked SET created_at = ` + b.in(-2*time.Hour) + ` WHERE message_id = 'due'`)
		b.exec(`UPDATE once_parked SET tenant = 'acme' WHERE message_id = 'done'`)
		ago := time.Now().Add(-time.Hour)
		for want, f := range map[string]parked.Filter{
			"due failed head":          {State: parked.Waiting},
			"due failed head ":         {State: parked.Waiting, Consumer: consumer},
			"due failed head  ":        {State: parked.Waiting, Consumer: consumer, Topic: topic},
			"second third":             {State: parked.Held},
			"second third ":            {State: parked.Held, Consumer: consumer},
			"poison":                   {State: parked.Quarantined},
			"poison ":                  {State: parked.Quarantined, Consumer: consumer},
			" ":                        {State: parked.Quarantined, Consumer: "other"},
			"done":                     {State: parked.Resolved},
			"gone":                     {State: parked.Discarded},
			"gone ":                    {Consumer: "other"},
			"gone  ":                   {Topic: "stock"},
			"head second third":        {OrderingKey: "k"},
			"done ":                    {Tenant: "acme"},
			"third":                    {MessageID: "third"},
			"third ":                   {MessageID: "third", State: parked.Held, Consumer: consumer},
			"  ":                       {MessageID: "third", State: parked.Waiting},
			"   ":                      {MessageID: "none"},
			"due":                      {CreatedBefore: ago},
			"second third poison":      {CreatedAfter: ago, IDs: []int64{1, 4, 5, 6}},
			"":                         {IDs: []int64{}},
			"due head":                 {IDs: []int64{3, 1, 99}},
			"third poison done gone  ": {AfterID: 4},
		} {
			page, err := b.messages.List(b.Context(), f)
			require.NoError(b, err)
			require.Equal(b, strings.TrimSpace(want), ids(page.Messages), "%+v", f)
			n, err := b.messages.Count(b.Context(), f)
			require.NoError(b, err)
			require.Equal(b, len(page.Messages), n.N, "%+v", f)
			require.Zero(b, n.Next)
		}
	})
}

func TestPagesGoOnAtNext(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		var pages []string
		for f := (parked.Filter{Limit: 3}); ; {
			page, err := b.messages.List(b.Context(), f)
			require.NoError(b, err)
			pages = append(pages, ids(page.Messages))
			if f.AfterID = page.Next; f.AfterID == 0 {
				break
			}
		}
		require.Equal(b, []string{"due failed head", "second third poison", "done gone"}, pages)
	})
}

// A call looks at a bounded number of rows. What an index finds is found in one call,
// however many rows there are.
func TestListsAreBounded(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(21_000, "busy")
		b.seed()
		for name, call := range map[string]func() error{
			"everything": func() error {
				page, err := b.messages.List(b.Context(), parked.Filter{})
				require.Len(b, page.Messages, 100)
				require.NotZero(b, page.Next)
				return err
			},
			"a tenant that does not exist": func() error {
				page, err := b.messages.List(b.Context(), parked.Filter{Tenant: "none"})
				require.Empty(b, page.Messages)
				require.NotZero(b, page.Next)
				return err
			},
			"few of one consumer": func() error {
				page, err := b.messages.List(b.Context(), parked.Filter{Consumer: consumer, State: parked.Waiting})
				require.Equal(b, "due failed head", ids(page.Messages))
				require.Zero(b, page.Next)
				return err
			},
			"few in quarantine": func() error {
				n, err := b.messages.Count(b.Context(), parked.Filter{State: parked.Quarantined})
				require.Equal(b, parked.Count{N: 1}, n)
				return err
			},
			"many of one consumer": func() error {
				n, err := b.messages.Count(b.Context(), parked.Filter{Consumer: "busy", State: parked.Waiting})
				require.Equal(b, 20_000, n.N)
				require.NotZero(b, n.Next)
				return err
			},
		} {
			began := time.Now()
			require.NoError(b, call(), name)
			b.Logf("%s: %v", name, time.Since(began))
		}
	})
}

// fill stores many waiting messages of a consumer.
func (b *bench) fill(rows int, name string) {
	b.Helper()
	numbers, id := `generate_series(1, $1) AS s(n)`, `gen_random_uuid()::text`
	if b.sqlite() {
		numbers = `(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < $1) SELECT n FROM s) AS s`
		id = `'` + name + `' || n`
	}
	b.exec(`INSERT INTO once_parked (consumer, topic, message_id, tenant, digest, envelope, state, due_at)
		SELECT $2, 'busy topic', `+id+`, 't' || (n % 10), $3, $3, 'waiting', `+b.in(-time.Minute)+` FROM `+numbers, rows, name, []byte{})
}

func TestBadInputIsRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		ctx, all := b.Context(), parked.Filter{All: true}
		cancel := func(act parked.Act, f parked.Filter, plan parked.Plan) error {
			_, err := b.messages.CancelMatching(ctx, act, f, plan)
			return err
		}
		run := func(f parked.Filter) error {
			_, err := b.messages.RunNowMatching(ctx, ann, f, parked.Plan{})
			return err
		}
		list := func(f parked.Filter) error {
			_, err := b.messages.List(ctx, f)
			return err
		}
		dry := func(do parked.Action, f parked.Filter) error {
			_, err := b.messages.DryRun(ctx, do, f)
			return err
		}
		backwards := parked.Filter{CreatedAfter: time.Now(), CreatedBefore: time.UnixMilli(1)}
		for want, err := range map[string]error{
			"parked: cancel: Actor is empty":                             cancel(parked.Act{Why: "x"}, all, parked.Plan{}),
			"Why is empty":                                               cancel(parked.Act{Actor: "ann"}, all, parked.Plan{}),
			"the Filter has no condition":                                cancel(ann, parked.Filter{}, parked.Plan{}),
			"Plan.Rate is -1: negative":                                  cancel(ann, all, parked.Plan{Rate: -1}),
			"use package poison":                                         cancel(ann, parked.Filter{State: parked.Quarantined}, parked.Plan{}),
			"such a message does not change any more":                    cancel(ann, parked.Filter{State: parked.Resolved}, parked.Plan{}),
			`State is "held": a held message runs`:                       run(parked.Filter{State: parked.Held}),
			"no IDs: name at least one":                                  b.messages.Cancel(ctx, ann),
			"parked: run: no IDs":                                        b.messages.RunNow(ctx, ann),
			`State is "dead", none of waiting, held`:                     list(parked.Filter{State: "dead"}),
			"Limit is -1: negative":                                      list(parked.Filter{Limit: -1}),
			"AfterID is -1: negative":                                    list(parked.Filter{AfterID: -1}),
			"All is set together with conditions":                        list(parked.Filter{All: true, Topic: "t"}),
			"CreatedBefore is not after CreatedAfter":                    list(backwards),
			`Action is "replay", none of run, cancel`:                    dry("replay", all),
			"parked: run: message 99: not found":                         b.messages.RunNow(ctx, ann, 2, 99),
			"parked: discard: message 99: not found":                     b.messages.Discard(ctx, ann, 2, 99),
			"message 4: held behind another message":                     b.messages.RunNow(ctx, ann, 2, 4),
			"message 6: neither waiting nor held, but quarantined":       b.messages.Cancel(ctx, ann, 2, 6),
			"the topic is empty":                                         b.messages.RemoveConsumer(ctx, ann, "x", "", parked.RemoveOptions{}),
			"the name of the cons":                                       b.messages.RemoveConsumer(ctx, ann, "", "x", parked.RemoveOptions{}),
			`parked: remove consumer "x" of topic "y": no such consumer`: b.messages.RemoveConsumer(ctx, ann, "x", "y", parked.RemoveOptions{}),
		} {
			require.ErrorContains(b, err, want)
		}
		require.Equal(b, "due:waiting failed:waiting head:waiting second:held third:held poison:quarantined done:resolved gone:discarded",
			b.states(parked.Filter{}))
		require.Empty(b, b.audits())
		require.Zero(b, b.count(`SELECT COUNT(*) FROM once_parked WHERE message_id = 'failed' AND due_at < `+b.in(time.Minute)))
	})
	_, err := parked.New(nil, parked.Config{})
	require.EqualError(t, err, "parked: db is nil")
}
