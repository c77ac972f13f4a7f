package parked_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
)

func TestListShowsEachState(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		want := "due:waiting failed:waiting head:waiting second:held third:held poison:quarantined done:resolved gone:discarded"
		if got := b.states(operate.Filter{}); got != want {
			b.Fatalf("states is %q, want %q", got, want)
		}
		claims := b.claim(time.Hour)
		if len(claims) != 1 {
			b.Fatalf("%d claims, want 1: %+v", len(claims), claims)
		}
		page, err := b.messages.List(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if page.Next != 0 {
			b.Fatalf("page.Next is %d, want 0", page.Next)
		}

		due, failed, third := page.Rows[0], page.Rows[1], page.Rows[4]
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
		if page.Rows[2].BlockedBy != 0 {
			b.Fatalf("page.Messages[2].BlockedBy is %d, want 0", page.Rows[2].BlockedBy)
		}

		one, err := b.messages.Get(b.Context(), third.ID)
		kit.OK(b, err)
		if string(one.Message.Payload) != "payload of third" {
			b.Fatalf(`one.Message.Payload is %q, want "payload of third"`, string(one.Message.Payload))
		}
		if one.Size == 0 {
			b.Fatal("one.Size is 0")
		}
		if _, err := b.messages.Get(b.Context(), 99); !errors.Is(err, operate.ErrNotFound) {
			b.Fatalf("Get: got %v, want ErrNotFound", err)
		}
		b.Exec(`UPDATE once_parked SET envelope = '' WHERE message_id = 'third'`)
		one, err = b.messages.Get(b.Context(), third.ID)
		kit.OK(b, err)
		if one.MessageErr == nil {
			b.Fatal("one.MessageErr is nil")
		}
	})
}

func TestFilterSelects(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`UPDATE once_parked SET created_at = ` + b.FromNow(-2*time.Hour) + ` WHERE message_id = 'due'`)
		b.Exec(`UPDATE once_parked SET tenant = 'acme' WHERE message_id = 'done'`)
		b.Exec(`UPDATE once_parked SET crashes = 1 WHERE message_id = 'head'`)
		ago := time.Now().Add(-time.Hour)
		for want, f := range map[string]operate.Filter{
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
			kit.OK(b, err)
			if got, wanted := ids(page.Rows), strings.TrimSpace(want); got != wanted {
				b.Fatalf("ids(page.Messages) is %q, want %q: %+v", got, wanted, f)
			}
			n, err := b.messages.Count(b.Context(), f)
			kit.OK(b, err)
			if n.N != len(page.Rows) {
				b.Fatalf("n.N is %d, want %d: %+v", n.N, len(page.Rows), f)
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
		for f := (operate.Filter{Limit: 3}); ; {
			page, err := b.messages.List(b.Context(), f)
			kit.OK(b, err)
			pages = append(pages, ids(page.Rows))
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
				page, err := b.messages.List(b.Context(), operate.Filter{})
				if len(page.Rows) != 100 {
					b.Fatalf("%d messages, want 100: %+v", len(page.Rows), page.Rows)
				}
				if page.Next == 0 {
					b.Fatal("page.Next is 0")
				}
				return err
			},
			"a tenant that does not exist": func() error {
				page, err := b.messages.List(b.Context(), operate.Filter{Tenant: "none"})
				if len(page.Rows) != 0 {
					b.Fatalf("page.Messages are %+v, want none", page.Rows)
				}
				if page.Next == 0 {
					b.Fatal("page.Next is 0")
				}
				return err
			},
			"few of one consumer": func() error {
				page, err := b.messages.List(b.Context(), operate.Filter{Consumer: consumer, State: parked.Waiting})
				if got := ids(page.Rows); got != "due failed head" {
					b.Fatalf(`ids(page.Messages) is %q, want "due failed head"`, got)
				}
				if page.Next != 0 {
					b.Fatalf("page.Next is %d, want 0", page.Next)
				}
				return err
			},
			"one message id": func() error {
				page, err := b.messages.List(b.Context(), operate.Filter{MessageID: "due"})
				if got := ids(page.Rows); got != "due" || page.Next != 0 {
					b.Fatalf("ids(page.Messages) is %q, page.Next is %d, want due and 0", got, page.Next)
				}
				return err
			},
			"few in quarantine": func() error {
				n, err := b.messages.Count(b.Context(), operate.Filter{State: parked.Quarantined})
				if want := (operate.Count{N: 1}); n != want {
					b.Fatalf("n is %+v, want %+v", n, want)
				}
				return err
			},
			"none in quarantine": func() error {
				page, err := b.messages.List(b.Context(), operate.Filter{Consumer: "busy", State: parked.Quarantined})
				if len(page.Rows) != 0 || page.Next != 0 {
					b.Fatalf("%d messages, page.Next is %d; want none", len(page.Rows), page.Next)
				}
				return err
			},
			"many of one consumer": func() error {
				n, err := b.messages.Count(b.Context(), operate.Filter{Consumer: "busy", State: parked.Waiting})
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
	if b.SQLite() {
		numbers = `(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < $1) SELECT n FROM s) AS s`
		id = `'` + name + `' || n`
	}
	b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, tenant, digest, envelope, state, due_at)
		SELECT $2, 'busy topic', `+id+`, 't' || (n % 10), $3, $3, 'waiting', `+b.FromNow(-time.Minute)+` FROM `+numbers, rows, name, []byte{})
}

// Every act must name a person. An act that may lose messages must also name the
// reason.
func TestActWithoutAPersonOrAReasonIsRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		ctx, m, id := b.Context(), b.messages, b.id("due")
		matching := func(do func(context.Context, operate.Act, operate.Filter, operate.Plan) (operate.Report, error)) func(operate.Act) error {
			return func(act operate.Act) error {
				_, err := do(ctx, act, operate.Filter{All: true}, operate.Plan{})
				return err
			}
		}
		nobody, silent := operate.Act{Why: "because"}, operate.Act{Actor: "ann"}
		for name, c := range map[string]struct {
			loses bool
			do    func(operate.Act) error
		}{
			"RunNow":          {false, func(act operate.Act) error { return m.RunNow(ctx, act, id) }},
			"RunNowMatching":  {false, matching(m.RunNowMatching)},
			"Cancel":          {true, func(act operate.Act) error { return m.Cancel(ctx, act, id) }},
			"CancelMatching":  {true, matching(m.CancelMatching)},
			"Discard":         {true, func(act operate.Act) error { return m.Discard(ctx, act, id) }},
			"DiscardMatching": {true, matching(m.DiscardMatching)},
			"RemoveConsumer": {true, func(act operate.Act) error {
				return m.RemoveConsumer(ctx, act, consumer, topic, parked.RemoveOptions{})
			}},
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
		run := func(f operate.Filter) error {
			_, err := b.messages.RunNowMatching(ctx, ann, f, operate.Plan{})
			return err
		}
		list := func(f operate.Filter) error {
			_, err := b.messages.List(ctx, f)
			return err
		}
		dry := func(do parked.Action, f operate.Filter) error {
			_, err := b.messages.DryRun(ctx, do, f)
			return err
		}
		backwards := operate.Filter{CreatedAfter: time.Now(), CreatedBefore: time.UnixMilli(1)}
		for want, err := range map[string]error{
			"parked: cancel: Actor is empty":                             cancel(operate.Act{Why: "x"}, all, operate.Plan{}),
			"Why is empty":                                               cancel(operate.Act{Actor: "ann"}, all, operate.Plan{}),
			"the Filter has no condition":                                cancel(ann, operate.Filter{}, operate.Plan{}),
			"Plan.Rate is -1: negative":                                  cancel(ann, all, operate.Plan{Rate: -1}),
			"use package quarantine":                                     cancel(ann, operate.Filter{State: parked.Quarantined}, operate.Plan{}),
			"such a message does not change any more":                    cancel(ann, operate.Filter{State: parked.Resolved}, operate.Plan{}),
			`State is "held": a held message runs`:                       run(operate.Filter{State: parked.Held}),
			"no IDs: name at least one":                                  b.messages.Cancel(ctx, ann),
			"parked: run: no IDs":                                        b.messages.RunNow(ctx, ann),
			`State is "dead", none of waiting, held`:                     list(operate.Filter{State: "dead"}),
			"Limit is -1: negative":                                      list(operate.Filter{Limit: -1}),
			"AfterID is -1: negative":                                    list(operate.Filter{AfterID: -1}),
			"All is set together with conditions":                        list(operate.Filter{All: true, Topic: "t"}),
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
		if got := b.states(operate.Filter{}); got != want {
			b.Fatalf("states is %q, want %q", got, want)
		}
		if got := b.Audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
		b.WantNumber(0, `SELECT COUNT(*) FROM once_parked WHERE message_id = 'failed' AND due_at < `+b.FromNow(time.Minute))
	})
	if _, err := parked.New(nil, operate.Config{}); err == nil || err.Error() != "parked: db is nil" {
		t.Fatalf(`New: got %v, want "parked: db is nil"`, err)
	}
}

// A watcher must not read the contents of messages and errors.
func TestListWithoutContent(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`UPDATE once_parked SET error_type = '*T' WHERE message_id = 'failed'`)
		watcher, err := parked.New(b.DB, operate.Config{Schema: b.Config, WithoutContent: true})
		kit.OK(b, err)
		for m, content := range map[*parked.Messages]bool{watcher: false, b.messages: true} {
			page, err := m.List(b.Context(), operate.Filter{MessageID: "failed"})
			kit.OK(b, err)
			if one := page.Rows[0]; (one.Size > 0) != content || (one.Error == "no answer") != content || one.Error == "" == content ||
				one.ErrorType != "*T" || one.Attempts != 3 {
				b.Errorf("with content %t: %+v", content, one)
			}
		}
	})
}

// An actor or a reason that is too long for its column is shortened, and the message is
// still cancelled.
func TestLongReasonIsShortened(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		long := operate.Act{Actor: strings.Repeat("a", 300), Why: strings.Repeat("w", 5000)}
		kit.OK(b, b.messages.Cancel(b.Context(), long, b.id("failed")))
		page, err := b.messages.List(b.Context(), operate.Filter{MessageID: "failed"})
		kit.OK(b, err)
		one := page.Rows[0]
		if len(one.Error) != store.MaxError || !strings.HasPrefix(one.Error, "cancelled by aaa") || one.FirstFailedAt.IsZero() {
			b.Errorf("the error has %d bytes: %.40q", len(one.Error), one.Error)
		}
		want := strings.Repeat("a", 255) + " | cancel | parked:2 | payments | failed | " + strings.Repeat("w", 4096)
		if got := b.Audits(); len(got) != 1 || got[0] != want {
			b.Errorf("audits are %.300q", got)
		}
	})
}

// A message with an early version is shown as early while it waits.
func TestEarlyMessageIsShownWhileItWaits(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`UPDATE once_parked SET early_since = ` + b.FromNow(-time.Minute) + ` WHERE message_id IN ('failed', 'poison')`)
		page, err := b.messages.List(b.Context(), operate.Filter{})
		kit.OK(b, err)
		for _, m := range page.Rows {
			if want := m.MessageID == "failed"; m.Early != want {
				b.Errorf("%s: early is %t", m.MessageID, m.Early)
			}
		}
	})
}

func TestGetReturnsEachField(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`UPDATE once_parked SET tenant = 'acme', ordering_key = 'key', owner = 'host/9/z', token = 'x',
			attempts = 3, crashes = 2, replays = 1, reason = 'permanent', error = 'no answer', error_type = '*T',
			created_at = ` + b.FromNow(-5*time.Hour) + `, due_at = ` + b.FromNow(time.Hour) + `, first_failed_at = ` + b.FromNow(-4*time.Hour) + `,
			last_failed_at = ` + b.FromNow(-3*time.Hour) + `, finished_at = ` + b.FromNow(-2*time.Hour) +
			` WHERE message_id = 'due'`)
		m, err := b.messages.Get(b.Context(), b.id("due"))
		kit.OK(b, err)
		for name, field := range map[string]struct{ got, want any }{
			"ID": {m.ID, b.id("due")}, "Consumer": {m.Consumer, consumer}, "Topic": {m.Topic, topic}, "MessageID": {m.MessageID, "due"},
			"Tenant": {m.Tenant, "acme"}, "OrderingKey": {m.OrderingKey, "key"}, "State": {m.State, parked.Waiting},
			"Claimed": {m.Claimed, true}, "ClaimedBy": {m.ClaimedBy, "host/9/z"},
			"Attempts": {m.Attempts, 3}, "Crashes": {m.Crashes, 2}, "Replays": {m.Replays, 1},
			"Reason": {m.Reason, "permanent"}, "Error": {m.Error, "no answer"}, "ErrorType": {m.ErrorType, "*T"},
			"DueAt":         {time.Until(m.DueAt).Round(time.Hour), time.Hour},
			"CreatedAt":     {time.Since(m.CreatedAt).Round(time.Hour), 5 * time.Hour},
			"FirstFailedAt": {time.Since(m.FirstFailedAt).Round(time.Hour), 4 * time.Hour},
			"LastFailedAt":  {time.Since(m.LastFailedAt).Round(time.Hour), 3 * time.Hour},
			"FinishedAt":    {time.Since(m.FinishedAt).Round(time.Hour), 2 * time.Hour},
		} {
			if field.got != field.want {
				b.Errorf("%s is %v, want %v", name, field.got, field.want)
			}
		}
		m, err = b.messages.Get(b.Context(), b.id("third"))
		kit.OK(b, err)
		if !m.FirstFailedAt.IsZero() || !m.LastFailedAt.IsZero() || !m.FinishedAt.IsZero() || m.ClaimedBy != "" {
			b.Errorf("a message that has not failed is %+v", m)
		}
	})
}

// CreatedAfter is inclusive and CreatedBefore exclusive, in whole milliseconds.
func TestPeriodOfAFilterIncludesItsBegin(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		at := time.UnixMilli(1_700_000_000_123)
		value := any(at)
		if b.SQLite() {
			value = at.UnixMilli()
		}
		b.Exec(`UPDATE once_parked SET created_at = $1 WHERE message_id = 'due'`, value)
		for _, c := range []struct {
			after, before time.Time
			found         int
		}{
			{after: at, found: 1},
			{after: at.Add(time.Millisecond)},
			{after: at.Add(time.Millisecond - 1), found: 1},
			{before: at},
			{before: at.Add(time.Millisecond - 1)},
			{before: at.Add(time.Millisecond), found: 1},
		} {
			n, err := b.messages.Count(b.Context(), operate.Filter{MessageID: "due", CreatedAfter: c.after, CreatedBefore: c.before})
			kit.OK(b, err)
			if n.N != c.found {
				b.Errorf("from %v until %v: %d messages, want %d", c.after, c.before, n.N, c.found)
			}
		}
	})
}
