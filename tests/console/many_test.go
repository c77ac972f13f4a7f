package console_test

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

// The console works with 1,000,000 entries in quarantine: each page loads, the dry run of a replay
// counts all entries of a group, and the search finds an entry. A count that stops at a limit says
// that there are more rows.
func TestManyEntries(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	b := open(t)
	b.seed()
	b.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, reason, error, fingerprint, first_failed_at,
			last_failed_at)
		SELECT 'failing', 'orders', 'q' || n, '', sha256(n::text::bytea), 'quarantined', now(), 'exhausted', 'the gateway is down: ' || n % 30,
			'f' || n % 30, now() - n * interval '1 second', now() - n * interval '1 second' FROM generate_series(1, 1000000) AS n`)
	b.exec(`INSERT INTO once_outbox (slot, message_id, topic, payload, metadata)
		SELECT n % 64, 'o' || n, 'bulk', '{}', '{}' FROM generate_series(1, 30000) AS n`)
	b.exec(`ANALYZE`)
	slowest := time.Duration(0)
	for _, page := range pages {
		if page.path == "entry?id=1&view=hex" {
			continue
		}
		began := time.Now()
		b.visit(page.path)
		b.clean(page.path)
		took := time.Since(began)
		t.Logf("%s: %v", page.path, took)
		slowest = max(slowest, took)
	}
	t.Logf("the slowest took %v", slowest)
	b.visit("")
	b.until("the counts say that there are more", `/^(10,000\+|~[0-9,]+)$/.test(
		document.querySelector("#live dl a[href='quarantine']").closest("div").querySelector("dd").innerText) &&
		document.querySelector("#live dl a[href='outbox']").closest("div").innerText.includes("+ due")`)
	b.visit("quarantine?consumer=failing")
	b.follow("the gateway is down: 7")
	b.click("Replay all")
	b.until("the dry run counts them", `/^33,33[34] messages$/.test(document.querySelector(".big")?.innerText)`)
	b.visit("quarantine?consumer=failing&message=q177777")
	b.follow("q177777")
	b.until("the entry", `document.body.innerText.includes("the gateway is down: 27")`)
	b.visit("quarantine?consumer=failing")
	b.click("Next page")
	b.until("the next page", `document.querySelectorAll("#entries ~ form a.row, section[aria-labelledby=entries] a.row").length === 100`)
	b.clean("many entries")
}
