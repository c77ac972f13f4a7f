package outbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	outboxops "github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/outbox"
)

func TestPauseIsListedAndAudited(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		orders, acme := outboxops.Scope{Topic: "orders"}, outboxops.Scope{Tenant: "acme"}
		kit.OK(b, b.messages.Pause(b.Context(), ann, orders))
		kit.OK(b, b.messages.Pause(b.Context(), operate.Act{Actor: "bob", Why: "again"}, orders))
		b.Exec(`UPDATE once_pauses SET paused_at = ` + b.FromNow(-time.Second)) // SQLite's clock has milliseconds
		kit.OK(b, b.messages.Pause(b.Context(), ann, acme))
		all, err := b.messages.ListPaused(b.Context())
		kit.OK(b, err)
		if len(all) != 2 || all[1].Scope != acme || time.Since(all[1].Since).Abs() > time.Minute {
			b.Fatalf("paused are %+v", all)
		}
		if want := (outboxops.Pause{Scope: orders, Actor: "ann", Why: "order 7 is void", Since: all[0].Since}); all[0] != want {
			b.Fatalf("got %+v, want %+v", all[0], want)
		}

		kit.OK(b, b.messages.Resume(b.Context(), operate.Act{Actor: "bob"}, orders))
		if err := b.messages.Resume(b.Context(), ann, orders); !errors.Is(err, outboxops.ErrNotPaused) {
			b.Fatalf("got %v", err)
		}
		want := []string{
			"ann | pause | topic:orders |  | order 7 is void", "ann | pause | tenant:acme |  | order 7 is void", "bob | resume | topic:orders |  | ",
		}
		if got := b.Audits(); !slices.Equal(got, want) {
			b.Fatalf("got %q, want %q", got, want)
		}
		all, err = b.messages.ListPaused(b.Context())
		kit.OK(b, err)
		if len(all) != 1 {
			b.Fatalf("paused are %+v", all)
		}
	})
}

func TestPauseIsShownWithTheMessages(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		m := msg("t1", "")
		outbox.SetTenant(m, "acme")
		b.publish("orders", msg("m1", ""), m)
		b.publish("mails", msg("m2", ""))
		kit.OK(b, b.messages.Pause(b.Context(), ann, outboxops.Scope{Topic: "mails"}))
		kit.OK(b, b.messages.Pause(b.Context(), ann, outboxops.Scope{Tenant: "acme"}))
		page, err := b.messages.List(b.Context(), operate.Filter{})
		kit.OK(b, err)
		var paused []bool
		for _, m := range page.Rows {
			paused = append(paused, m.Paused)
		}
		if want := []bool{false, true, true}; !slices.Equal(paused, want) {
			b.Fatalf("got %v, want %v", paused, want)
		}
		backlog, err := b.messages.Backlog(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if mails, orders := backlog.Topics[0], backlog.Topics[1]; !mails.Paused || mails.Pending != 1 || orders.Paused {
			b.Fatalf("the backlog is %+v", backlog)
		}
	})
}

func TestPauseRefusesMistakes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		ctx, m, nobody := b.Context(), b.messages, operate.Act{}
		topic := outboxops.Scope{Topic: "t"}
		for want, err := range map[string]error{
			"topic \"\" and tenant \"\": set exactly one":   m.Pause(ctx, ann, outboxops.Scope{}),
			"topic \"t\" and tenant \"t\": set exactly one": m.Pause(ctx, ann, outboxops.Scope{Topic: "t", Tenant: "t"}),
			"Scope is \"topic:\\x00\": no message":          m.Pause(ctx, ann, outboxops.Scope{Topic: "\x00"}),
			"Scope is \"tenant:xxx":                         m.Pause(ctx, ann, outboxops.Scope{Tenant: strings.Repeat("x", 256)}),
			"Actor is empty":                                m.Resume(ctx, nobody, topic),
			"say why the messages must wait":                m.Pause(ctx, operate.Act{Actor: "ann"}, topic),
			"outbox: resume: topic:t: not paused":           m.Resume(ctx, ann, topic),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				b.Fatalf("got %v, want %s", err, want)
			}
		}
		if got := b.Audits(); len(got) > 0 {
			b.Fatalf("got %q", got)
		}
	})
}
