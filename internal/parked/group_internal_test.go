package parked

import (
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// What failed for one cause is replayed and discarded a batch at a time, and
// the cause is mostly one that PostgreSQL has not seen yet: it takes it for a
// rare one.
func TestABatchOfANewCauseReadsNoMoreThanItself(t *testing.T) {
	db := testkit.Postgres(t)
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	s, err := NewStore(db.DB, config)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(fingerprint string) string {
		return `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint)
			SELECT 'c', 't', gen_random_uuid()::text, '', '', 'quarantined', now(), ` + fingerprint + ` FROM generate_series(1, 30000) AS i`
	}
	for _, query := range []string{
		`ALTER TABLE once_parked SET (autovacuum_enabled = false)`, fill(`'old' || i % 1000`), `ANALYZE once_parked`, fill(`'new'`),
	} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	where := s.where(Filter{Fingerprint: "new", AfterID: 30000}, Quarantined)
	query := s.dialect.SQL(`SELECT id FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.arg(100))
	var text []byte
	if err := db.QueryRowContext(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+query, where.args...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	if pages := pagesOf(t, text); pages > 50 {
		t.Errorf("%d pages for %s", pages, text)
	}
}
