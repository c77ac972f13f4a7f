package forwarder

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// A lookahead finds the same tenants as all other queries of the outbox, without decoding
// the metadata.
func TestLookaheadFindsTheTenantWithoutDecoding(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t).DB
	d := kit.Dialect(t, schema.Config{}.WithDefaults())
	for metadata, want := range map[string]string{
		`{}`:                        "",
		`{"a":"b"}`:                 "",
		`{"once_tenant_id":"acme"}`: "acme",
		`{"a":"b","once_tenant_id":"acme","c":"d"}`:              "acme",
		`{"a": "b", "once_tenant_id": "acme", "c": "d"}`:         "acme",
		`{"once_tenant_id":""}`:                                  "",
		`{"once_tenant_id":"a\"b\\c\u00e9"}`:                     `a"b\cé`,
		`{"once_tenant_id":"ends with \\","c":"d"}`:              `ends with \`,
		`{"a":"\"once_tenant_id\":\"no\"","once_tenant_id":"é"}`: "é",
		`{"a":"once_tenant_id","b":"\"once_tenant_id\":"}`:       "",
		`{"once_tenant_id":"` + strings.Repeat("x", 300) + `"}`:  strings.Repeat("x", 255),
	} {
		var quick, decoded string
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT `+quickTenant(d)+`, `+outboxrow.Tenant(d)+` FROM (SELECT $1::json AS metadata) AS o`,
			metadata).Scan(&quick, &decoded))
		if quick != want || decoded != want {
			t.Errorf("%s: found %q, decoded %q, want %q", metadata, quick, decoded, want)
		}
	}
}

// PostgreSQL must not compile the query of a lookahead, because compiling takes longer
// than running the query.
func TestLookaheadIsNotCompiled(t *testing.T) {
	t.Parallel()
	s, exec := ownerOfAll(t, kit.Postgres(t))
	exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) SELECT n, 't', 1, '', '{}' FROM generate_series(1, 30) AS n`)
	kit.OK(t, s.read(t.Context(), func(tx *sql.Tx) error {
		before, after := "", ""
		if err := tx.QueryRowContext(t.Context(), `SHOW jit`).Scan(&before); err != nil {
			return err
		}
		var h outboxState
		if err := h.scan(tx.QueryRowContext(t.Context(), s.sql.snapshotOfLookahead)); err != nil {
			return err
		}
		if h.highest < 30 {
			t.Errorf("the highest position is %d, want at least 30", h.highest)
		}
		err := tx.QueryRowContext(t.Context(), `SHOW jit`).Scan(&after)
		if after != "off" {
			t.Errorf("jit is %q before the snapshot and %q after it, want off", before, after)
		}
		return err
	}))
}

// The field Reach.More tells the scheduler that another lookahead would find rows that
// may be sent.
func TestLookaheadTellsWhetherThereIsMore(t *testing.T) {
	t.Parallel()
	s, exec := ownerOfAll(t, kit.Postgres(t))
	exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
		SELECT n, CASE WHEN n > 5 THEN 'few' ELSE 'many' END, 1, '', '{}' FROM generate_series(1, 8) AS n`)
	for perGroup, more := range map[int]bool{2: true, 3: false} {
		found, err := s.rows(t.Context(), &dispatch.Read{
			Lookahead: true, Slots: []int64{1}, Limit: 10, Bytes: 1000, Examine: 10, PerGroup: perGroup, Groups: []dispatch.Group{{Topic: "many"}},
		})
		kit.OK(t, err)
		if len(found.rows) != perGroup || found.reach.More != more || found.reach.End < 8 {
			t.Errorf("%d of a group: found %d, %+v", perGroup, len(found.rows), found.reach)
		}
	}
}

// Trap 100. A row may be committed late, below the rows that a lookahead examines. The
// lookahead must not return rows with the same key.
func TestLookaheadLeavesOutKeysWithALateRow(t *testing.T) {
	t.Parallel()
	s, exec := ownerOfAll(t, kit.Postgres(t))
	exec(`INSERT INTO once_outbox (position, message_id, topic, ordering_key, slot, payload, metadata) VALUES
		(11, 'late', 't', 'k', 1, '', '{}'), (12, 'later', 't', 'k', 1, '', '{}'), (13, 'other', 't', 'l', 1, '', '{}')`)
	for late, want := range map[int64]string{10: "other", 11: "later other"} {
		found, err := s.rows(t.Context(), &dispatch.Read{
			Lookahead: true, From: 11, Late: late, Passed: late, Slots: []int64{1}, Limit: 10, Bytes: 1000, Examine: 10, PerGroup: 10,
		})
		kit.OK(t, err)
		var ids []string
		for _, m := range found.rows {
			ids = append(ids, m.ID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("with late rows above %d: found %q, want %q", late, got, want)
		}
		if skipped := len(found.reach.Skipped); skipped != 2-len(ids) || found.reach.More != (len(ids) == 1) {
			t.Errorf("with late rows above %d: %+v", late, found.reach)
		}
	}
}
