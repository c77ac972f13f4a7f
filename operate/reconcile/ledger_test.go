package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestLedgerCountsByColumns(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		p := newPlace(t, db)
		hour := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
		p.sent("orders", hour.Add(time.Minute), "1", "2")
		p.sent("orders", hour.Add(time.Hour), "3")
		p.sent("stock", hour.Add(25*time.Hour), "4")
		p.exec(`UPDATE once_outbox_sent SET metadata = '{"once_tenant_id": "acme", "once_event_type": "OrderPlaced"}' WHERE message_id = '2'`)
		p.handled(billed, hour.Add(2*time.Minute), "1", "key:order-1")
		p.exec(`UPDATE once_inbox SET tenant = 'acme'`)
		p.parked("quarantined", hour.Add(3*time.Minute), "2")
		p.exec(`UPDATE once_parked SET tenant = 'acme', event_type = 'OrderPlaced'`)
		p.parked("resolved", hour.Add(3*time.Minute), "1")
		p.exec(`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata, created_at)
			VALUES (1, '5', 'orders', 0, 'x', '{}', $1)`, p.at(hour))
		p.exec(`INSERT INTO once_outbox_dead (message_id, topic, position, payload, metadata, created_at, attempts, last_error, reason,
			unknown) VALUES ('6', 'stock', 2, 'x', '{}', $1, 1, '', 'exhausted', $2)`, p.at(hour), true)

		ledger := func(from, until time.Time, by ...string) (all []string) {
			lines, err := Ledger(t.Context(), db.DB, LedgerConfig{
				Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}, By: by, From: from, Until: until,
			})
			kit.OK(t, err)
			for _, l := range lines {
				start := ""
				if !l.Start.IsZero() {
					start = l.Start.Format("02 15h")
				}
				all = append(all, fmt.Sprintf("%s %s %s %s %s %s %d", start, l.Topic, l.Consumer, l.Tenant, l.EventType, l.State, l.N))
				if l.First.After(l.Last) {
					t.Fatal("l.First.After(l.Last) returned true")
				}
			}
			return all
		}
		none := time.Time{}
		want := []string{"     pending 1", "     dead 1", "     sent 4", "     handled 1", "     quarantined 1"}
		if got := ledger(none, none); !slices.Equal(got, want) {
			t.Fatalf("ledger(none, none) is %q, want %q", got, want)
		}
		wantLedger := []string{
			"01 00h     pending 1", "01 00h     dead 1", "01 00h     sent 3", "01 00h     handled 1", "01 00h     quarantined 1",
			"02 00h     sent 1",
		}
		if got := ledger(none, none, "day"); !slices.Equal(got, wantLedger) {
			t.Fatalf("ledger(none, none, by day) is %q, want %q", got, wantLedger)
		}
		wantLedger = []string{
			"01 12h     handled 1", "01 12h orders    pending 1", "01 12h orders    sent 2", "01 12h orders.placed    quarantined 1",
			"01 12h stock    dead 1",
		}
		if got := ledger(none, hour.Add(time.Hour), "hour", "topic"); !slices.Equal(got, wantLedger) {
			t.Fatalf("ledger is %q, want %q", got, wantLedger)
		}
		lines := ledger(none, none, "consumer", "tenant", "type")
		wantLedger = []string{
			"     pending 1", "     dead 1", "     sent 3", "   acme OrderPlaced sent 1",
			"  billing acme  handled 1", "  billing acme OrderPlaced quarantined 1",
		}
		slices.Sort(lines)
		slices.Sort(wantLedger)
		if !slices.Equal(lines, wantLedger) {
			t.Fatalf("ledger by consumer, tenant and type is %q, want %q", lines, wantLedger)
		}
		if got, want := ledger(hour.Add(24*time.Hour), none), []string{"     sent 1"}; !slices.Equal(got, want) {
			t.Fatalf("ledger is %q, want %q", got, want)
		}
	})
}

func TestLedgerRefusesMistakes(t *testing.T) {
	_, err := Ledger(t.Context(), nil, LedgerConfig{By: []string{"month", "day", "hour"}, From: noon, Until: noon})
	for _, want := range []string{"db is nil", `By has "month"`, `"day" and "hour"`, "Until is not after From"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want an error with %q", err, want)
		}
	}
}
