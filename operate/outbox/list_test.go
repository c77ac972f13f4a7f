package outbox_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
)

func TestListShowsWhyAMessageWaits(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		page, err := b.messages.List(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if page.Next != 0 {
			b.Fatalf("page.Next is %d, want 0", page.Next)
		}
		if got, want := ids(page.Rows), "due refused later head second third"; got != want {
			b.Fatalf("ids(page.Messages) is %q, want %q", got, want)
		}
		var states []string
		for _, m := range page.Rows {
			states = append(states, m.State)
			if m.Payload != nil {
				b.Fatalf("m.Payload is %q, want nil", m.Payload)
			}
		}
		want := []string{
			outbox.Due, outbox.BackingOff, outbox.Delayed, outbox.BackingOff, outbox.Blocked, outbox.Blocked,
		}
		if !slices.Equal(states, want) {
			b.Fatalf("states are %q, want %q", states, want)
		}

		refused := page.Rows[1]
		if refused.Attempts != 3 {
			b.Fatalf("refused.Attempts is %d, want 3", refused.Attempts)
		}
		if refused.LastError != "no queue" {
			b.Fatalf(`refused.LastError is %q, want "no queue"`, refused.LastError)
		}
		if got := time.Until(refused.DueAt).Seconds(); math.Abs(got-3600) > 60 {
			b.Fatalf("time.Until(refused.DueAt).Seconds is %v, want 3600, give or take 60", got)
		}
		if got := time.Since(refused.FailingSince).Seconds(); math.Abs(got-3600) > 60 {
			b.Fatalf("time.Since(refused.FailingSince).Seconds is %v, want 3600, give or take 60", got)
		}
		if !page.Rows[0].DueAt.IsZero() {
			b.Fatal("page.Messages[0].DueAt is not zero")
		}
		head := page.Rows[3]
		if head.BlockedBy != 0 {
			b.Fatalf("head.BlockedBy is %d, want 0", head.BlockedBy)
		}
		if page.Rows[5].BlockedBy != head.ID {
			b.Fatalf("page.Messages[5].BlockedBy is %d, want %d", page.Rows[5].BlockedBy, head.ID)
		}
		if head.OrderingKey != "k" {
			b.Fatalf(`head.OrderingKey is %q, want "k"`, head.OrderingKey)
		}

		one, err := b.messages.Get(b.Context(), head.ID)
		kit.OK(b, err)
		if string(one.Payload) != "payload of head" {
			b.Fatalf(`one.Payload is %q, want "payload of head"`, string(one.Payload))
		}
		if one.Size != len(one.Payload) {
			b.Fatalf("one.Size is %d, want %d", one.Size, len(one.Payload))
		}
		if _, err := b.messages.Get(b.Context(), 99); !errors.Is(err, operate.ErrNotFound) {
			b.Fatalf("Get: got %v, want ErrNotFound", err)
		}
	})
}

func TestFilterSelects(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`UPDATE once_outbox SET created_at = ` + b.FromNow(-2*time.Hour) + ` WHERE message_id = 'due'`)
		b.Exec(`UPDATE once_outbox SET metadata = '{"once_tenant_id":"acme","once_aggregate_type":"order","once_aggregate_id":"7",
			"once_event_type":"placed"}' WHERE message_id = 'third'`)
		b.Exec(`UPDATE once_outbox SET metadata = '{"odd":"\u0000"}' WHERE message_id = 'due'`)
		ago := time.Now().Add(-time.Hour)
		for want, f := range map[string]operate.Filter{
			"due":                                 {State: outbox.Due},
			"refused head":                        {State: outbox.BackingOff},
			"later":                               {State: outbox.Delayed},
			"second third":                        {State: outbox.Blocked},
			"due refused later":                   {Topic: "orders"},
			"head second third":                   {OrderingKey: "k"},
			"third":                               {MessageID: "third"},
			" third":                              {Tenant: "acme"},
			"third ":                              {AggregateType: "order", AggregateID: "7", EventType: "placed"},
			" ":                                   {AggregateType: "stock", AggregateID: "7"},
			"refused":                             {State: outbox.BackingOff, Topic: "orders"},
			"due ":                                {CreatedBefore: ago},
			"refused later head second third":     {CreatedAfter: ago},
			"":                                    {IDs: []int64{}},
			"due later":                           {IDs: []int64{3, 1, 99}},
			"due refused later head second third": {All: true},
		} {
			page, err := b.messages.List(b.Context(), f)
			kit.OK(b, err)
			if got, wanted := ids(page.Rows), strings.TrimSpace(want); got != wanted {
				b.Fatalf("ids(page.Messages) is %q, want %q: %+v", got, wanted, f)
			}
			n, err := b.messages.Count(b.Context(), f)
			kit.OK(b, err)
			if n.N != len(page.Rows) {
				b.Fatalf("n.N is %d, want %d: %+v", n.N, len(page.Rows), f)
			}
		}
	})
}

func TestPagesGoOnAtNext(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		var pages []string
		for f := (operate.Filter{Limit: 4}); ; {
			page, err := b.messages.List(b.Context(), f)
			kit.OK(b, err)
			pages = append(pages, ids(page.Rows))
			if f.AfterID = page.Next; f.AfterID == 0 {
				break
			}
		}
		if want := []string{"due refused later head", "second third"}; !slices.Equal(pages, want) {
			b.Fatalf("pages are %q, want %q", pages, want)
		}
	})
}

func TestBacklogCountsTopics(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		backlog, err := b.messages.Backlog(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if want := (outbox.Backlog{}); !reflect.DeepEqual(backlog, want) {
			b.Fatalf("backlog is %+v, want %+v", backlog, want)
		}

		b.seed()
		b.Exec(`UPDATE once_outbox SET created_at = ` + b.FromNow(-time.Hour) + ` WHERE message_id = 'second'`)
		backlog, err = b.messages.Backlog(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if len(backlog.Topics) != 2 {
			b.Fatalf("%d topics, want 2: %+v", len(backlog.Topics), backlog.Topics)
		}
		orders, stock := backlog.Topics[0], backlog.Topics[1]
		if orders.Oldest >= time.Minute {
			b.Fatalf("orders.Oldest is %v, want less than %v", orders.Oldest, time.Minute)
		}
		if got := stock.Oldest.Seconds(); math.Abs(got-3600) > 60 {
			b.Fatalf("stock.Oldest.Seconds is %v, want 3600, give or take 60", got)
		}
		orders.Oldest, stock.Oldest = 0, 0
		if want := (outbox.Topic{Name: "orders", Pending: 3, Due: 1, BackingOff: 1, Delayed: 1}); orders != want {
			b.Fatalf("orders is %+v, want %+v", orders, want)
		}
		if want := (outbox.Topic{Name: "stock", Pending: 3, BackingOff: 1, Blocked: 2}); stock != want {
			b.Fatalf("stock is %+v, want %+v", stock, want)
		}
	})
}

// Every act must name a person. An act that may lose or stop messages must also name
// the reason.
func TestActWithoutAPersonOrAReasonIsRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		ctx, m, id, scope := b.Context(), b.messages, b.id("refused"), outbox.Scope{Topic: "orders"}
		matching := func(do func(context.Context, operate.Act, operate.Filter, operate.Plan) (operate.Report, error)) func(operate.Act) error {
			return func(act operate.Act) error {
				_, err := do(ctx, act, operate.Filter{All: true}, operate.Plan{})
				return err
			}
		}
		nobody, silent := operate.Act{Why: "because"}, operate.Act{Actor: "ann"}
		for name, c := range map[string]struct {
			why bool
			do  func(operate.Act) error
		}{
			"Retry":          {false, func(act operate.Act) error { return m.Retry(ctx, act, id) }},
			"RetryMatching":  {false, matching(m.RetryMatching)},
			"Cancel":         {true, func(act operate.Act) error { return m.Cancel(ctx, act, id) }},
			"CancelMatching": {true, matching(m.CancelMatching)},
			"Pause":          {true, func(act operate.Act) error { return m.Pause(ctx, act, scope) }},
			"Resume":         {false, func(act operate.Act) error { return m.Resume(ctx, act, scope) }},
		} {
			if err := c.do(nobody); err == nil || !strings.Contains(err.Error(), "Actor is empty") {
				b.Errorf(`%s: got %v, want an error with "Actor is empty"`, name, err)
			}
			if !c.why {
				continue
			}
			if err := c.do(silent); err == nil || !strings.Contains(err.Error(), "Why is empty") {
				b.Errorf(`%s: got %v, want an error with "Why is empty"`, name, err)
			}
		}
		if got := b.Audits(); len(got) != 0 {
			b.Errorf("audits are %q, want none", got)
		}
	})
}

func TestBadInputIsRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		ctx, all := b.Context(), operate.Filter{All: true}
		cancel := func(act operate.Act, f operate.Filter, plan operate.Plan) error {
			_, err := b.messages.CancelMatching(ctx, act, f, plan)
			return err
		}
		retry := func(f operate.Filter) error {
			_, err := b.messages.RetryMatching(ctx, ann, f, operate.Plan{})
			return err
		}
		list := func(f operate.Filter) error {
			_, err := b.messages.List(ctx, f)
			return err
		}
		for want, err := range map[string]error{
			"outbox: cancel: Actor is empty":             cancel(operate.Act{Why: "x"}, all, operate.Plan{}),
			"Why is empty":                               cancel(operate.Act{Actor: "ann"}, all, operate.Plan{}),
			"the Filter has no condition":                cancel(ann, operate.Filter{}, operate.Plan{}),
			"Plan.Rate is -1: negative":                  cancel(ann, all, operate.Plan{Rate: -1}),
			"no IDs: name at least one":                  b.messages.Cancel(ctx, ann),
			"outbox: retry: no IDs":                      b.messages.Retry(ctx, ann),
			`State is "due": only backing_off and delay`: retry(operate.Filter{State: outbox.Due}),
			`State is "dead", none of due, backing_off`:  list(operate.Filter{State: "dead"}),
			"Limit is -1: negative":                      list(operate.Filter{Limit: -1}),
			"AfterID is -1: negative":                    list(operate.Filter{AfterID: -1}),
			"All is set together with conditions":        list(operate.Filter{All: true, Topic: "t"}),
			"CreatedBefore is not after CreatedAfter":    list(operate.Filter{CreatedAfter: time.Now(), CreatedBefore: time.UnixMilli(1)}),
			"outbox: retry: message 99: not found":       b.messages.Retry(ctx, ann, 2, 99),
			"outbox: cancel: message 99: not found":      b.messages.Cancel(ctx, ann, 2, 99),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				b.Fatalf("got %v, want an error with %q", err, want)
			}
		}
		if got, want := b.left(), "due refused later head second third"; got != want {
			b.Fatalf("left is %q, want %q", got, want)
		}
		if got := b.Audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
		b.WantNumber(0, `SELECT COUNT(*) FROM once_outbox WHERE message_id = 'refused' AND due_at < `+b.FromNow(time.Minute))
	})
	if _, err := outbox.New(nil, operate.Config{}); err == nil || err.Error() != "outbox: db is nil" {
		t.Fatalf(`New: got %v, want "outbox: db is nil"`, err)
	}
}

func TestBlockedKeysNameTheirHeads(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
			VALUES ('a', 77, 77, 'dead'), ('z', 78, 78, 'unknown')`)
		all, err := b.messages.BlockedKeys(b.Context(), outbox.KeyFilter{})
		kit.OK(b, err)
		if len(all) != 3 {
			b.Fatalf("len(all) is %d, want 3: %+v", len(all), all)
		}
		if got := all[0].OrderingKey + " " + all[1].OrderingKey + " " + all[2].OrderingKey; got != "a k z" {
			b.Fatalf(`the keys are %q, want "a k z"`, got)
		}
		if !all[0].Dead {
			b.Fatal("all[0].Dead is false")
		}
		if all[0].Topic != "" {
			b.Fatalf("all[0].Topic is %q, want nothing", all[0].Topic)
		}
		head := all[1]
		if want := b.id("head"); head.Head != want {
			b.Fatalf("head.Head is %d, want %d", head.Head, want)
		}
		if got := head.BlockedAt.Unix(); math.Abs(float64(got)-float64(time.Now().Unix())) > 60 {
			b.Fatalf("head.BlockedAt.Unix is %v, want %v, give or take 60", got, time.Now().Unix())
		}
		want := []any{"head", "stock", 3, "refused", false}
		if got := []any{head.MessageID, head.Topic, head.Attempts, head.Reason, head.Dead}; !reflect.DeepEqual(got, want) {
			b.Fatalf("head.MessageID, head.Topic, head.Attempts, head.Reason, head.Dead are %v, want %v", got, want)
		}
		if got := time.Until(head.DueAt).Seconds(); math.Abs(got-3600) > 60 {
			b.Fatalf("time.Until(head.DueAt).Seconds is %v, want 3600, give or take 60", got)
		}

		for want, f := range map[string]outbox.KeyFilter{"k": {OrderingKey: "k"}, "z": {AfterKey: "k"}, "a": {Limit: 1}} {
			some, err := b.messages.BlockedKeys(b.Context(), f)
			kit.OK(b, err)
			if len(some) != 1 {
				b.Fatalf("len(some) is %d, want 1: %+v", len(some), some)
			}
			if some[0].OrderingKey != want {
				b.Fatalf("some[0].OrderingKey is %q, want %q", some[0].OrderingKey, want)
			}
		}
		_, err = b.messages.BlockedKeys(b.Context(), outbox.KeyFilter{Limit: -1})
		if err == nil || !strings.Contains(err.Error(), "Limit is -1") {
			b.Fatalf(`got %v, want an error with "Limit is -1"`, err)
		}
	})
}
