package console_test

import (
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// Pages count up to 10,000 rows, and say if only a part of the sent log was searched.
func TestPagesOfManyRowsShowWhatWasNotCounted(t *testing.T) {
	t.Parallel()
	b := benchIn(t, testkit.Postgres(t), nil)
	b.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint, reason)
		SELECT 'payments', CASE WHEN i <= 10000 THEN 'most' ELSE 'few' END, 'q' || i, '', '', 'quarantined', now(), 'f', 'exhausted'
		FROM generate_series(1, 10001) AS i`)
	b.exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
		SELECT i, 'd' || i, CASE WHEN i <= 10000 THEN 'most' ELSE 'few' END, '', '{}', now(), 20, 'no queue', 'exhausted', false
		FROM generate_series(1, 10001) AS i`)
	b.exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
		SELECT i, 's' || i, CASE WHEN i <= 50000 THEN 'most' ELSE 'few' END, '', '{}', now() FROM generate_series(1, 50001) AS i`)
	for page, parts := range map[string][]string{
		"quarantine":                     {`Entries <span class="muted">10,000+</span>`},
		"quarantine?after=5000":          {`Entries <span class="muted">10,000+</span>`},
		"quarantine?topic=most":          {`Entries <span class="muted">10,000</span>`},
		"quarantine?topic=few":           {`Entries <span class="muted">1</span>`},
		"dead":                           {`<span class="muted">10,000+</span>`},
		"dead?topic=most":                {`<span class="muted">10,000</span>`},
		"dead?topic=few":                 {`<span class="muted">1</span>`},
		"sent?topic=few":                 {"No sent message matches so far.", `href="sent?after=50000&amp;topic=few"`},
		"sent?topic=few&after=50000":     {"s50001"},
		"sent?topic=neither&after=50000": {"No sent message matches."},
	} {
		got := b.get(page).text
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q is missing:\n%.3000s", page, part, got)
			}
		}
	}
}

// If several conditions match many rows each, but rarely the same ones, pages say that
// only a part was searched.
func TestPagesOfSearchesWithSeveralConditionsLinkToTheRest(t *testing.T) {
	t.Parallel()
	b := benchIn(t, testkit.Postgres(t), nil)
	// The first and the last row have both values.
	b.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint, reason, tenant)
		SELECT CASE WHEN i % 2 = 1 OR i = 30000 THEN 'payments' ELSE 'mail' END, 'orders', 'q' || i, '', '', 'quarantined', now(), 'f', 'failed',
		       CASE WHEN i % 2 = 0 OR i = 1 THEN 'acme' ELSE 'umbrella' END
		FROM generate_series(1, 30000) AS i`)
	b.exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown,
			tenant)
		SELECT i, 'd' || i, CASE WHEN i % 2 = 1 OR i = 30000 THEN 'orders' ELSE 'mail' END, '', '{}', now(), 20, 'no queue', 'exhausted', false,
		       CASE WHEN i % 2 = 0 OR i = 1 THEN 'acme' ELSE 'umbrella' END
		FROM generate_series(1, 30000) AS i`)
	for page, parts := range map[string][]string{
		"quarantine?consumer=payments&tenant=acme": {
			"q1<", `<span class="muted">1+</span>`, `href="quarantine?after=19999&amp;consumer=payments&amp;tenant=acme"`,
		},
		"quarantine?consumer=payments&tenant=acme&after=1":     {"No entry matches so far.", `href="quarantine?after=20001`},
		"quarantine?consumer=payments&tenant=acme&after=20001": {"q30000"},
		"quarantine?consumer=mail&tenant=umbrella":             {"No failure is known yet.", "No entry matches so far."},
		"dead?topic=orders&tenant=acme": {
			"d1<", `<span class="muted">1+</span>`, `href="dead?after=19999&amp;tenant=acme&amp;topic=orders"`,
		},
		"dead?topic=orders&tenant=acme&after=1":     {"No dead letter matches so far.", `href="dead?after=20001`},
		"dead?topic=orders&tenant=acme&after=20001": {"d30000"},
		"dead?topic=mail&tenant=umbrella": {
			"No cause is known yet.", "No dead letter matches so far.", `<span class="muted">0+</span>`,
		},
	} {
		got := b.get(page).text
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q is missing:\n%.3000s", page, part, got)
			}
		}
	}
}
