package pending_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/pending"
)

func TestPauseIsListedAndAudited(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		orders, acme := pending.Scope{Topic: "orders"}, pending.Scope{Tenant: "acme"}
		require.NoError(b, b.messages.Pause(b.Context(), ann, orders))
		require.NoError(b, b.messages.Pause(b.Context(), pending.Act{Actor: "bob", Why: "again"}, orders), "it is paused already")
		require.NoError(b, b.messages.Pause(b.Context(), ann, acme))
		all, err := b.messages.ListPaused(b.Context())
		require.NoError(b, err)
		require.Len(b, all, 2)
		require.Equal(b, pending.Pause{Scope: orders, Actor: "ann", Why: "order 7 is void", Since: all[0].Since}, all[0])
		require.Equal(b, acme, all[1].Scope)
		require.WithinDuration(b, time.Now(), all[1].Since, time.Minute)

		require.NoError(b, b.messages.Resume(b.Context(), pending.Act{Actor: "bob"}, orders))
		require.ErrorIs(b, b.messages.Resume(b.Context(), ann, orders), pending.ErrNotPaused)
		require.Equal(b, []string{
			"ann | pause | topic:orders |  | order 7 is void", "ann | pause | tenant:acme |  | order 7 is void", "bob | resume | topic:orders |  | ",
		}, b.audits())
		all, err = b.messages.ListPaused(b.Context())
		require.NoError(b, err)
		require.Len(b, all, 1)
	})
}

func TestPauseIsShownWithTheMessages(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		m := msg("t1", "")
		outbox.SetTenant(m, "acme")
		b.publish("orders", msg("m1", ""), m)
		b.publish("mails", msg("m2", ""))
		require.NoError(b, b.messages.Pause(b.Context(), ann, pending.Scope{Topic: "mails"}))
		require.NoError(b, b.messages.Pause(b.Context(), ann, pending.Scope{Tenant: "acme"}))
		page, err := b.messages.List(b.Context(), pending.Filter{})
		require.NoError(b, err)
		var paused []bool
		for _, m := range page.Messages {
			paused = append(paused, m.Paused)
		}
		require.Equal(b, []bool{false, true, true}, paused)
		backlog, err := b.messages.Backlog(b.Context(), pending.Filter{})
		require.NoError(b, err)
		require.True(b, backlog.Topics[0].Paused)
		require.False(b, backlog.Topics[1].Paused)
		require.Equal(b, 1, backlog.Topics[0].Pending, "its messages are counted")
	})
}

func TestPauseRefusesMistakes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		ctx, m, nobody := b.Context(), b.messages, pending.Act{}
		topic := pending.Scope{Topic: "t"}
		for want, err := range map[string]error{
			"topic \"\" and tenant \"\": set exactly one":   m.Pause(ctx, ann, pending.Scope{}),
			"topic \"t\" and tenant \"t\": set exactly one": m.Pause(ctx, ann, pending.Scope{Topic: "t", Tenant: "t"}),
			"Scope is \"topic:\\x00\": no message":          m.Pause(ctx, ann, pending.Scope{Topic: "\x00"}),
			"Scope is \"tenant:xxx":                         m.Pause(ctx, ann, pending.Scope{Tenant: strings.Repeat("x", 256)}),
			"Actor is empty":                                m.Resume(ctx, nobody, topic),
			"say why the messages must wait":                m.Pause(ctx, pending.Act{Actor: "ann"}, topic),
			"pending: resume: topic:t: not paused":          m.Resume(ctx, ann, topic),
		} {
			require.ErrorContains(b, err, want)
		}
		require.Empty(b, b.audits())
	})
}
