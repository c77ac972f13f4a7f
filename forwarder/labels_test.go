package forwarder_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// Rows of the sent log and of the dead letters have the label columns, by which they can
// be found. If the metadata of a row has a form that package outbox never writes, the
// forwarder continues with other rows.
func TestSentAndDeadRowsHaveLabels(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		labelled := msg("labelled", "")
		outbox.SetTenant(labelled, `it's <"acme">`)
		outbox.SetAggregate(labelled, "order", strings.Repeat("ü", 300), 1)
		outbox.SetEventType(labelled, "placed")
		labelled.Metadata["once_causation_id"] = "cause"
		dead := labelled.Copy()
		dead.UUID = "dead"
		put(t, db, config, "t", labelled, msg("bare", ""))
		put(t, db, config, "bad", dead)
		odd := []string{
			`{"once_tenant_id":"a\u0000b"}`, `{"once_tenant_id":"\ud83d"}`, `{"once_tenant_id":"\u00e9"}`, `["once_tenant_id"]`, `null`, `"x"`,
			`{"once_tenant_id":{"a":1}}`,
		}
		for i, metadata := range odd {
			exec(t, db, `INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata)
				VALUES ($1, $2, 't', 0, '', $3)`, 1000+i, metadata, metadata)
		}
		b := newBroker().answering(func(d delivery) error {
			if d.topic == "bad" {
				return hopeless{errors.New("no")}
			}
			return nil
		})
		start(t, db, b, keeping(config))
		drained(t, db)

		const labels = ` WHERE message_id = $1
			AND tenant || '|' || aggregate_type || '|' || aggregate_id || '|' || event_type || '|' || causation_id = $2`
		want := `it's <"acme">|order|` + strings.Repeat("ü", 255) + `|placed|cause`
		if got := count(t, db, `SELECT COUNT(*) FROM once_outbox_sent`+labels, "labelled", want); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}
		if got := count(t, db, `SELECT COUNT(*) FROM once_outbox_sent`+labels, "bare", "||||"); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}
		if got := count(t, db, `SELECT COUNT(*) FROM once_outbox_dead`+labels, "dead", want); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}
		if got := count(t, db, `SELECT (SELECT COUNT(*) FROM once_outbox_sent) + (SELECT COUNT(*) FROM once_outbox_dead)`); got != len(odd)+3 {
			t.Fatalf("count is %d, want %d", got, len(odd)+3)
		}
		if got := count(t, db, `SELECT COUNT(*) FROM once_outbox_sent WHERE tenant = 'é'`); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}
	})
}
