package quarantine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
)

// mixed puts entries into quarantine that differ in every field of a Filter.
func mixed(b *bench) {
	b.Helper()
	for i, e := range []struct {
		consumer, topic, id, tenant string

		failure parkedrows.Failure
	}{
		{"payments", "orders.placed", "p1", "acme", parkedrows.Failure{Err: errors.New("card 17 is refused"), Reason: poison.ReasonExhausted}},
		{"payments", "orders.placed", "p2", "", parkedrows.Failure{Err: errors.New("card 18 is refused"), Reason: poison.ReasonExhausted}},
		{"payments", "orders.changed", "p3", "acme", parkedrows.Failure{Err: errors.New("card 9 is refused"), Reason: poison.ReasonExhausted}},
		{"payments", "orders.placed", "p4", "", parkedrows.Failure{Err: &time.ParseError{Message: "no time"}, Reason: poison.ReasonPermanent}},
		{"inventory", "orders.placed", "p1", "", parkedrows.Failure{Err: errors.New("card 17 is refused"), Reason: poison.ReasonExhausted}},
	} {
		msg := message.NewMessage(e.id, []byte("body"))
		if e.id == "p3" {
			msg.Metadata.Set("once_aggregate_type", "order")
			msg.Metadata.Set("once_aggregate_id", "o-3")
			msg.Metadata.Set("once_event_type", "OrderPlaced")
		}
		if e.tenant != "" {
			msg.Metadata.Set("once_tenant_id", e.tenant)
		}
		d := &parkedrows.Delivery{Consumer: e.consumer, Topic: e.topic}
		kit.OK(b, kit.Err(b.parked.Quarantine(b.Context(), d, msg, e.failure, nil)))
		// The times of two entries differ by one second.
		at := []any{int64(i+1) * 1000, e.consumer, e.id}
		query := `UPDATE once_parked SET last_failed_at = ?, first_failed_at = ? WHERE consumer = ? AND message_id = ?`
		if b.Dialect == "postgres" {
			query = `UPDATE once_parked SET last_failed_at = to_timestamp($1::bigint / 1000), first_failed_at = to_timestamp($2::bigint / 1000)
				WHERE consumer = $3 AND message_id = $4`
		}
		kit.Exec(b, b, query, at[0], at[0], at[1], at[2])
	}
}

func names(entries []quarantine.Entry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Consumer[:1]+":"+e.MessageID)
	}
	return all
}

func TestEveryFieldOfAFilterFilters(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		mixed(b)
		all := b.list()
		for name, c := range map[string]struct {
			filter operate.Filter
			want   []string
		}{
			"nothing":      {operate.Filter{}, []string{"p:p1", "p:p2", "p:p3", "p:p4", "i:p1"}},
			"aggregate":    {operate.Filter{AggregateID: "o-3"}, []string{"p:p3"}},
			"its type":     {operate.Filter{AggregateType: "order", AggregateID: "o-3"}, []string{"p:p3"}},
			"other type":   {operate.Filter{AggregateType: "stock", AggregateID: "o-3"}, nil},
			"no aggregate": {operate.Filter{AggregateType: "order"}, []string{"p:p3"}},
			"event type":   {operate.Filter{EventType: "OrderPlaced"}, []string{"p:p3"}},
			"other event":  {operate.Filter{EventType: "orderplaced"}, nil},
			"all":          {operate.Filter{All: true}, []string{"p:p1", "p:p2", "p:p3", "p:p4", "i:p1"}},
			"ids":          {operate.Filter{IDs: []int64{all[1].ID, all[4].ID, 4711}}, []string{"p:p2", "i:p1"}},
			"no ids":       {operate.Filter{IDs: []int64{}}, nil},
			"consumer":     {operate.Filter{Consumer: "inventory"}, []string{"i:p1"}},
			"topic":        {operate.Filter{Topic: "orders.changed"}, []string{"p:p3"}},
			"message":      {operate.Filter{MessageID: "p1"}, []string{"p:p1", "i:p1"}},
			"tenant":       {operate.Filter{Tenant: "acme"}, []string{"p:p1", "p:p3"}},
			"reason":       {operate.Filter{Reason: poison.ReasonPermanent}, []string{"p:p4"}},
			"error type":   {operate.Filter{ErrorType: "*time.ParseError"}, []string{"p:p4"}},
			"fingerprint":  {operate.Filter{Fingerprint: all[0].Fingerprint}, []string{"p:p1", "p:p2", "p:p3"}},
			"failed after": {operate.Filter{FailedAfter: time.UnixMilli(4000)}, []string{"p:p4", "i:p1"}},
			"before":       {operate.Filter{FailedBefore: time.UnixMilli(2000)}, []string{"p:p1"}},
			"after an id":  {operate.Filter{AfterID: all[3].ID}, []string{"i:p1"}},
			"two":          {operate.Filter{Tenant: "acme", Topic: "orders.placed"}, []string{"p:p1"}},
			"limit":        {operate.Filter{Consumer: "payments", Limit: 3}, []string{"p:p1", "p:p2", "p:p3"}},
			"hostile text": {operate.Filter{Consumer: "' OR 1=1 --"}, nil},
		} {
			page, err := b.store.List(t.Context(), c.filter)
			if err != nil || !slices.Equal(names(page.Rows), c.want) {
				t.Errorf("%s: %v, %q, want %q", name, err, names(page.Rows), c.want)
			}
		}
		for field, f := range map[string]operate.Filter{
			"Limit":        {Limit: -1},
			"AfterID":      {AfterID: -1},
			"FailedBefore": {FailedAfter: time.UnixMilli(2), FailedBefore: time.UnixMilli(2)},
			"All":          {All: true, Consumer: "payments"},

			`Reason is "exausted", none of exhausted, failed, permanent, crashed, invalid_id, collision, undecodable, gap, stale`: {
				Reason: "exausted",
			},
		} {
			if _, err := b.store.List(t.Context(), f); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: error %v", field, err)
			}
		}
	})
}

// If a caller forgets to set the conditions of a Filter, the call must return an error
// and change nothing.
func TestFilterWithoutConditionNeedsAll(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "m1", "m2")
		for name, do := range map[string]func(operate.Filter) error{
			"dry run": func(f operate.Filter) error {
				_, err := b.store.DryRun(t.Context(), f, operate.Plan{})
				return err
			},
			"discard": func(f operate.Filter) error { _, err := b.store.DiscardMatching(t.Context(), act, f); return err },
			"replay": func(f operate.Filter) error {
				_, err := b.store.ReplayMatching(t.Context(), act, f, operate.Plan{})
				return err
			},
		} {
			for _, f := range []operate.Filter{{}, {Limit: 5}, {AfterID: 1}} {
				if err := do(f); err == nil || !strings.Contains(err.Error(), "set All") {
					t.Errorf("%s of %+v: %v", name, f, err)
				}
			}
		}
		if n := len(b.list()); n != 2 {
			t.Fatalf("%d are left", n)
		}
		if n, err := b.store.DiscardMatching(t.Context(), act, operate.Filter{All: true}); err != nil || n != 2 {
			t.Fatalf("%d discarded, %v", n, err)
		}
	})
}

func TestGroupsArePagedAndDescribeTheirEntries(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		mixed(b)
		listed, err := b.store.Groups(t.Context(), operate.Filter{})
		if err != nil || len(listed.Groups) != 3 {
			t.Fatalf("%v, %+v", err, listed.Groups)
		}
		i := slices.IndexFunc(listed.Groups, func(g operate.Group) bool { return g.Count == 3 })
		if i < 0 {
			t.Fatalf("no group of 3 in %+v", listed.Groups)
		}
		g := listed.Groups[i]
		got := fmt.Sprintf("%s %s %s %s %q %d %d", g.Consumers, g.Topics, g.Reason, g.ErrorType, g.Error,
			g.FirstFailedAt.UnixMilli(), g.LastFailedAt.UnixMilli())
		want := `[payments] [orders.changed orders.placed] exhausted *errors.errorString "card 9 is refused" 1000 3000`
		if got != want {
			t.Errorf("the group is %s, want %s", got, want)
		}
		var paged []string
		for after := ""; ; {
			one, err := b.store.Groups(t.Context(), operate.Filter{Limit: 1, AfterGroup: after})
			kit.OK(t, err)
			if len(one.Groups) == 0 {
				break
			}
			after = one.Groups[0].Fingerprint
			paged = append(paged, fmt.Sprint(one.Groups[0].Fingerprint, one.Groups[0].Count))
		}
		var whole []string
		for _, g := range listed.Groups {
			whole = append(whole, fmt.Sprint(g.Fingerprint, g.Count))
		}
		if !slices.Equal(paged, whole) {
			t.Errorf("page by page %q, at once %q", paged, whole)
		}
		filtered, err := b.store.Groups(t.Context(), operate.Filter{Tenant: "acme"})
		if err != nil || len(filtered.Groups) != 1 || filtered.Groups[0].Count != 2 {
			t.Errorf("%v, of one tenant %+v", err, filtered.Groups)
		}

		// A dry run shows the entries that a change would affect, within its limit.
		dry, err := b.store.DryRun(t.Context(), operate.Filter{Consumer: "payments", Limit: 2}, operate.Plan{})
		if err != nil || len(dry) != 1 || dry[0].Count != 2 {
			t.Errorf("%v, dry run %+v", err, dry)
		}
		if n := len(b.list()); n != 5 || len(b.Audits()) != 0 {
			t.Errorf("%d are left, audit %q", n, b.Audits())
		}
	})
}

func TestTrap72DiscardMatchingFillsInboxAndAudit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		const many = 230 // more than one transaction
		for i := range many {
			b.quarantine("payments", fmt.Sprint("m", i))
		}
		b.quarantine("inventory", "m1")
		if _, err := b.store.DiscardMatching(t.Context(), operate.Act{Actor: "ann"}, operate.Filter{Consumer: "payments"}); err == nil ||
			!strings.Contains(err.Error(), "Why") {
			t.Errorf("error %v does not name Why", err)
		}
		n, err := b.store.DiscardMatching(t.Context(), act, operate.Filter{Consumer: "payments", Limit: 30})
		if err != nil || n != 30 {
			t.Fatalf("%d discarded, %v", n, err)
		}
		n, err = b.store.DiscardMatching(t.Context(), act, operate.Filter{Consumer: "payments"})
		if err != nil || n != many-30 {
			t.Fatalf("%d discarded, %v", n, err)
		}
		if left := b.list(); len(left) != 1 || left[0].Consumer != "inventory" {
			t.Errorf("left are %q", names(left))
		}
		if lines := b.Audits(); len(lines) != many {
			t.Errorf("%d lines of audit", len(lines))
		}
		b.WantNumber(many, `SELECT COUNT(*) FROM once_inbox WHERE consumer = 'payments'`)
	})
}

// Entries that arrive during a discard have not been reviewed, so they stay. The discard
// still ends.
func TestDiscardMatchingSparesLaterEntries(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		b.quarantine("payments", "m1", "m2", "m3")
		failing := `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
			VALUES (NEW.consumer, NEW.topic, NEW.message_id || '+', NEW.digest, NEW.envelope, 'quarantined', NEW.due_at);`
		trigger := `CREATE TRIGGER failing AFTER UPDATE ON once_parked WHEN NEW.state = 'discarded' BEGIN ` + failing + ` END`
		if db.Dialect == "postgres" {
			trigger = `CREATE FUNCTION failing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + failing + ` RETURN NULL; END $$;
				CREATE TRIGGER failing AFTER UPDATE ON once_parked FOR EACH ROW WHEN (NEW.state = 'discarded') EXECUTE FUNCTION failing()`
		}
		kit.Exec(t, db, trigger)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		n, err := b.store.DiscardMatching(ctx, act, operate.Filter{Consumer: "payments"})
		if left := len(b.list()); err != nil || n != 3 || left != 3 {
			t.Fatalf("%d discarded, %d left, %v", n, left, err)
		}
	})
}
