package mover

import (
	"database/sql"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// backlog returns a mover, and fills the table of Watermill's own forwarder with rows
// whose transactions have ended.
func backlog(t *testing.T, rows, size int) *Mover {
	t.Helper()
	db := kit.PostgresAlone(t).DB
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	for _, query := range []string{
		`CREATE TABLE watermill_forwarder_topic ("offset" BIGSERIAL, uuid VARCHAR(36) NOT NULL,
			created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, payload JSON, metadata JSON,
			transaction_id xid8 NOT NULL, PRIMARY KEY (transaction_id, "offset"))`,
		`CREATE TABLE watermill_offsets_forwarder_topic (consumer_group VARCHAR(255) PRIMARY KEY, offset_acked BIGINT,
			last_processed_transaction_id xid8 NOT NULL)`,
	} {
		kit.OK(t, kit.Err(db.Exec(query)))
	}
	kit.Exec(t, db, `
		INSERT INTO watermill_forwarder_topic (uuid, payload, metadata, transaction_id)
		SELECT n, json_build_object('destination_topic', 't', 'uuid', n::text, 'payload', repeat('AAAA', $2 / 3)), '{}',
		       (n % 3 + 1)::text::xid8
		FROM generate_series(1, $1::int) AS n`, rows, size)
	m, err := New(db, Config{})
	kit.OK(t, err)
	return m
}

func TestBatchIsLimitedByBytes(t *testing.T) {
	m := backlog(t, 3, maxBytes/8*3) // base64 makes the payload a third larger
	var sizes []int
	for {
		n, err := m.moveBatch(t.Context())
		kit.OK(t, err)
		if n == 0 {
			break
		}
		sizes = append(sizes, n)
	}
	if want := []int{2, 1}; !slices.Equal(sizes, want) {
		t.Fatalf("sizes are %v, want %v", sizes, want)
	}
}

// Trap 03. A batch reads only its own rows. The query of Watermill's own forwarder
// reads the whole backlog for each batch.
func TestTrap03_BatchReadsOnlyItsOwnRows(t *testing.T) {
	rows := kit.Sized(10_000, 30_000)
	m := backlog(t, rows, 3)
	look := func() {
		t.Helper()
		for query, args := range map[string][]any{
			m.sql.next:    {"2", rows / 2, 100, maxBytes},
			m.sql.waiting: {"2", rows / 2},
		} {
			plan := planOf(t, m.db, query, args...)
			if want := "Index Cond: ((ROW(transaction_id"; !strings.Contains(plan, want) {
				t.Fatalf("%q does not contain %q", plan, want)
			}
			if strings.Contains(plan, "Rows Removed") {
				t.Fatalf(`%q contains "Rows Removed"`, plan)
			}
			if regexp.MustCompile(`Scan.*actual rows=[0-9]{4}`).MatchString(plan) {
				t.Fatalf("%s matches %s", plan, `Scan.*actual rows=[0-9]{4}`)
			}
		}
	}
	look()
	kit.OK(t, kit.Err(m.db.Exec(`ANALYZE watermill_forwarder_topic`)))
	look()
}

func planOf(t *testing.T, db *sql.DB, query string, args ...any) string {
	t.Helper()
	rows, err := db.Query(`EXPLAIN (ANALYZE, TIMING OFF) `+query, args...)
	kit.OK(t, err)
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var line string
		kit.OK(t, rows.Scan(&line))
		plan = append(plan, line)
	}
	kit.OK(t, rows.Err())
	return strings.Join(plan, "\n")
}

func TestPausesGrowUpTo3200Milliseconds(t *testing.T) {
	if got := pauses.Delay(1, 0); got != 100*time.Millisecond {
		t.Fatalf("pauses.Delay(1, 0) is %v, want %v", got, 100*time.Millisecond)
	}
	if got := pauses.Delay(6, 0); got != 3200*time.Millisecond {
		t.Fatalf("pauses.Delay(6, 0) is %v, want %v", got, 3200*time.Millisecond)
	}
	if got := pauses.Delay(1_000_000, 0); got != 3200*time.Millisecond {
		t.Fatalf("pauses.Delay(1_000_000, 0) is %v, want %v", got, 3200*time.Millisecond)
	}
}
