package quarantine

import (
	"testing"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// Entries with the same cause are replayed and discarded in batches. Usually a new
// cause is not in the statistics yet, so PostgreSQL expects only few rows. A batch must
// still read only its own rows.
func TestBatchOfANewGroupReadsOnlyItsRows(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.EmptyPostgres(t)
	s := newTestTable(t, db)
	fill := func(fingerprint string) string {
		return `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint)
			SELECT 'c', 't', gen_random_uuid()::text, '', '', 'quarantined', now(), ` + fingerprint + ` FROM generate_series(1, 30000) AS i`
	}
	for _, query := range []string{
		`ALTER TABLE once_parked SET (autovacuum_enabled = false)`, fill(`'old' || i % 1000`), `ANALYZE once_parked`, fill(`'new'`),
	} {
		kit.Exec(t, db, query)
	}
	where := s.where(operate.Filter{Fingerprint: "new", AfterID: 30000}, parkedrows.Quarantined)
	query := s.SQL(`SELECT id FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.Arg(100))
	text := kit.One[[]byte](t, db, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+query, where.Args...)
	if pages := kit.PagesRead(t, text); pages > 50 {
		t.Errorf("%d pages for %s", pages, text)
	}
}
