package parked_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/parked"
)

func TestListShowsEachState(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		want := "due:waiting failed:waiting head:waiting second:held third:held poison:quarantined done:resolved gone:discarded"
		if got := b.states(parked.Filter{}); got != want {
			b.Fatalf("states is %q, want %q", got, want)
		}
		claims := b.claim(time.Hour)
		if len(claims) != 1 {
			b.Fatalf("%d claims, want 1: %+v", len(claims), claims)
		}
		page, err := b.messages.List(b.Context(), parked.Filter{})
		if err != nil {
			b.Fatal(err)
		}
		if page.Next != 0 {
			b.Fatalf("page.Next is %d, want 0", page.Next)
		}

		due, failed, third := page.Messages[0], page.Messages[1], page.Messages[4]
		if !due.Claimed {
			b.Fatal("due.Claimed is false")
		}
		if due.ClaimedBy != "host/1/a" {
			b.Fatalf(`due.ClaimedBy is %q, want "host/1/a"`, due.ClaimedBy)
		}
		if due.Crashes != 1 {
			b.Fatalf("due.Crashes is %d, want 1", due.Crashes)
		}
		if due.Message != nil {
			b.Fatalf("due.Message is %+v, want nil", due.Message)
		}
		if failed.Claimed {
			b.Fatal("failed.Claimed is true")
		}
		if failed.Attempts != 3 {
			b.Fatalf("failed.Attempts is %d, want 3", failed.Attempts)
		}
		if failed.Error != "no answer" {
			b.Fatalf(`failed.Error is %q, want "no answer"`, failed.Error)
		}
		if got := time.Until(failed.DueAt).Seconds(); math.Abs(got-3600) > 60 {
			b.Fatalf("time.Until(failed.DueAt).Seconds is %v, want 3600, give or take 60", got)
		}
		if got := time.Since(failed.LastFailedAt).Seconds(); math.Abs(got-60) > 60 {
			b.Fatalf("time.Since(failed.LastFailedAt).Seconds is %v, want 60, give or take 60", got)
		}
		if third.OrderingKey != "k" {
			b.Fatalf(`third.OrderingKey is %q, want "k"`, third.OrderingKey)
		}
		if want := b.id("head"); third.BlockedBy != want {
			b.Fatalf("third.BlockedBy is %d, want %d", third.BlockedBy, want)
		}
		if page.Messages[2].BlockedBy != 0 {
			b.Fatalf("page.Messages[2].BlockedBy is %d, want 0", page.Messages[2].BlockedBy)
		}

		one, err := b.messages.Get(b.Context(), third.ID)
		if err != nil {
			b.Fatal(err)
		}
		if string(one.Message.Payload) != "payload of third" {
			b.Fatalf(`one.Message.Payload is %q, want "payload of third"`, string(one.Message.Payload))
		}
		if one.Size == 0 {
			b.Fatal("one.Size is 0")
		}
		if _, err := b.messages.Get(b.Context(), 99); !errors.Is(err, parked.ErrNotFound) {
			b.Fatalf("Get: got %v, want ErrNotFound", err)
		}
		b.exec(`UPDATE once_parked SET envelope = '' WHERE message_id = 'third'`)
		one, err = b.messages.Get(b.Context(), third.ID)
		if err != nil {
			b.Fatal(err)
		}
		if one.MessageErr == nil {
			b.Fatal("one.MessageErr is nil")
		}
	})
}

func TestFilterSelects(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`UPDATE once_parked SET created_at = ` + b.fromNow(-2*time.Hour) + ` WHERE message_id = 'due'`)
		b.exec(`UPDATE once_parked SET tenant = 'acme' WHERE message_id = 'done'`)
		b.exec(`UPDATE once_parked SET crashes = 1 WHERE message_id = 'head'`)
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
			if err != nil {
				b.Fatal(err)
			}
			if got, wanted := ids(page.Messages), strings.TrimSpace(want); got != wanted {
				b.Fatalf("ids(page.Messages) is %q, want %q: %+v", got, wanted, f)
			}
			n, err := b.messages.Count(b.Context(), f)
			if err != nil {
				b.Fatal(err)
			}
			if n.N != len(page.Messages) {
				b.Fatalf("n.N is %d, want %d: %+v", n.N, len(page.Messages), f)
			}
			if n.Next != 0 {
				b.Fatalf("n.Next is %d, want 0", n.Next)
			}
		}
	})
}

func TestPagesGoOnAtNext(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		var pages []string
		for f := (parked.Filter{Limit: 3}); ; {
			page, err := b.messages.List(b.Context(), f)
			if err != nil {
				b.Fatal(err)
			}
			pages = append(pages, ids(page.Messages))
			if f.AfterID = page.Next; f.AfterID == 0 {
				break
			}
		}
		if want := []string{"due failed head", "second third poison", "done gone"}; !slices.Equal(pages, want) {
			b.Fatalf("pages are %q, want %q", pages, want)
		}
	})
}

// A call of List or Count reads a limited number of rows. If an index finds the
// matching rows, one call returns them all, even in a large table.
func TestListsAreBounded(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(21_000, "busy")
		b.seed()
		for name, call := range map[string]func() error{
			"everything": func() error {
				page, err := b.messages.List(b.Context(), parked.Filter{})
				if len(page.Messages) != 100 {
					b.Fatalf("%d messages, want 100: %+v", len(page.Messages), page.Messages)
				}
				if page.Next == 0 {
					b.Fatal("page.Next is 0")
				}
				return err
			},
			"a tenant that does not exist": func() error {
				page, err := b.messages.List(b.Context(), parked.Filter{Tenant: "none"})
				if len(page.Messages) != 0 {
					b.Fatalf("page.Messages are %+v, want none", page.Messages)
				}
				if page.Next == 0 {
					b.Fatal("page.Next is 0")
				}
				return err
			},
			"few of one consumer": func() error {
				page, err := b.messages.List(b.Context(), parked.Filter{Consumer: consumer, State: parked.Waiting})
				if got := ids(page.Messages); got != "due failed head" {
					b.Fatalf(`ids(page.Messages) is %q, want "due failed head"`, got)
				}
				if page.Next != 0 {
					b.Fatalf("page.Next is %d, want 0", page.Next)
				}
				return err
			},
			"one message id": func() error {
				page, err := b.messages.List(b.Context(), parked.Filter{MessageID: "due"})
				if got := ids(page.Messages); got != "due" || page.Next != 0 {
					b.Fatalf("ids(page.Messages) is %q, page.Next is %d, want due and 0", got, page.Next)
				}
				return err
			},
			"few in quarantine": func() error {
				n, err := b.messages.Count(b.Context(), parked.Filter{State: parked.Quarantined})
				if want := (parked.Count{N: 1}); n != want {
					b.Fatalf("n is %+v, want %+v", n, want)
				}
				return err
			},
			"none in quarantine": func() error {
				page, err := b.messages.List(b.Context(), parked.Filter{Consumer: "busy", State: parked.Quarantined})
				if len(page.Messages) != 0 || page.Next != 0 {
					b.Fatalf("%d messages, page.Next is %d; want none", len(page.Messages), page.Next)
				}
				return err
			},
			"many of one consumer": func() error {
				n, err := b.messages.Count(b.Context(), parked.Filter{Consumer: "busy", State: parked.Waiting})
				if n.N != 20_000 {
					b.Fatalf("n.N is %d, want 20_000", n.N)
				}
				if n.Next == 0 {
					b.Fatal("n.Next is 0")
				}
				return err
			},
		} {
			began := time.Now()
			if err := call(); err != nil {
				b.Fatalf("%s: %v", name, err)
			}
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
		SELECT $2, 'busy topic', `+id+`, 't' || (n % 10), $3, $3, 'waiting', `+b.fromNow(-time.Minute)+` FROM `+numbers, rows, name, []byte{})
}

// Every act must name a person. An act that may lose messages must also name the
// reason.
func TestActWithoutAPersonOrAReasonIsRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		ctx, m, id := b.Context(), b.messages, b.id("due")
		matching := func(do func(context.Context, parked.Act, parked.Filter, parked.Plan) (parked.Report, error)) func(parked.Act) error {
			return func(act parked.Act) error {
				_, err := do(ctx, act, parked.Filter{All: true}, parked.Plan{})
				return err
			}
		}
		nobody, silent := parked.Act{Why: "because"}, parked.Act{Actor: "ann"}
		for name, c := range map[string]struct {
			loses bool
			do    func(parked.Act) error
		}{
			"RunNow":          {false, func(act parked.Act) error { return m.RunNow(ctx, act, id) }},
			"RunNowMatching":  {false, matching(m.RunNowMatching)},
			"Cancel":          {true, func(act parked.Act) error { return m.Cancel(ctx, act, id) }},
			"CancelMatching":  {true, matching(m.CancelMatching)},
			"Discard":         {true, func(act parked.Act) error { return m.Discard(ctx, act, id) }},
			"DiscardMatching": {true, matching(m.DiscardMatching)},
			"RemoveConsumer":  {true, func(act parked.Act) error { return m.RemoveConsumer(ctx, act, consumer, topic, parked.RemoveOptions{}) }},
		} {
			if err := c.do(nobody); err == nil || !strings.Contains(err.Error(), "Actor is empty") {
				b.Errorf(`%s: got %v, want an error with "Actor is empty"`, name, err)
			}
			if !c.loses {
				continue
			}
			if err := c.do(silent); err == nil || !strings.Contains(err.Error(), "Why is empty") {
				b.Errorf(`%s: got %v, want an error with "Why is empty"`, name, err)
			}
		}
		if got := b.audits(); len(got) != 0 {
			b.Errorf("audits are %q, want none", got)
		}
	})
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
			if err == nil || !strings.Contains(err.Error(), want) {
				b.Fatalf("got %v, want an error with %q", err, want)
			}
		}
		want := "due:waiting failed:waiting head:waiting second:held third:held poison:quarantined done:resolved gone:discarded"
		if got := b.states(parked.Filter{}); got != want {
			b.Fatalf("states is %q, want %q", got, want)
		}
		if got := b.audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
		if got := b.count(`SELECT COUNT(*) FROM once_parked WHERE message_id = 'failed' AND due_at < ` + b.fromNow(time.Minute)); got != 0 {
			b.Fatalf("count is %d, want 0", got)
		}
	})
	if _, err := parked.New(nil, parked.Config{}); err == nil || err.Error() != "parked: db is nil" {
		t.Fatalf(`New: got %v, want "parked: db is nil"`, err)
	}
}
