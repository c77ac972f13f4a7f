package quarantine

import (
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// SQLite uses the same indexes for a Filter as PostgreSQL.
func TestSQLiteUsesTheIndexOfAFilter(t *testing.T) {
	db := kit.SQLite(t)
	s := newTestTable(t, db)
	for index, filters := range map[string][]operate.Filter{
		"once_parked_quarantined": {{}},
		"once_parked_topic":       {{Topic: "t"}},
		"once_parked_tenant":      {{Tenant: "t"}, {Tenant: "t", Consumer: "c"}},
		"once_parked_event":       {{EventType: "t"}},
		"once_parked_reason":      {{Reason: "failed"}},
		"once_parked_type":        {{AggregateType: "t"}, {AggregateType: "t", Consumer: "c"}},
		"once_parked_error":       {{ErrorType: "t"}, {ErrorType: "t", Consumer: "c"}},
		"once_parked_consumer":    {{Consumer: "c"}, {Consumer: "c", Topic: "t", AfterID: 7}},
		"once_parked_counts":      {{Consumer: "c", Topic: "t"}},
		"once_parked_fingerprint": {{Fingerprint: "f"}, {Fingerprint: "f", Consumer: "c"}},
		"once_parked_aggregate":   {{AggregateID: "a"}, {AggregateID: "a", AggregateType: "t", Consumer: "c", AfterID: 7}},
		"once_parked_message":     {{MessageID: "m"}, {MessageID: "m", Consumer: "c", Fingerprint: "f"}},
	} {
		for _, f := range filters {
			where := s.where(f, parkedrows.Quarantined)
			query := s.SQL(`EXPLAIN QUERY PLAN SELECT id FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.Arg(100))
			var (
				id, parent, unused int
				plan               string
			)
			kit.OK(t, db.QueryRowContext(t.Context(), query, where.Args...).Scan(&id, &parent, &unused, &plan))
			if !strings.Contains(plan, index) {
				t.Errorf("%+v: %s, want %s", f, plan, index)
			}
		}
	}
}
