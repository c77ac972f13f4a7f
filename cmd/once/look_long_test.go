package main

import (
	"strconv"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// The commands list and count search the whole table, even with several conditions. The
// command groups says that it has searched only a part of the table.
func TestSearchesWithSeveralConditionsGoOnToTheEnd(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		now := `now()`
		if db.Dialect == "sqlite" {
			now = `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
		}
		// Only the first and the last row have both the tenant and the event type.
		last := strconv.Itoa(testkit.Sized(25_000, 50_000))
		numbers := `WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < ` + last + `) `
		labels := `CASE WHEN i % 2 = 0 OR i = 1 THEN 'acme' ELSE '' END, CASE WHEN i % 2 = 1 OR i = ` + last + ` THEN 'placed' ELSE '' END`
		rare := `CASE WHEN i = 1 OR i = ` + last + ` THEN 'rare' ELSE 'usual' END`
		for _, query := range []string{
			numbers + `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason,
					unknown, tenant, event_type)
				SELECT i, 'm' || i, 't', '', '{}', ` + now + `, 1, ` + rare + `, 'exhausted', 1 = 0, ` + labels + ` FROM numbers`,
			numbers + `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, reason, fingerprint, tenant,
					event_type)
				SELECT 'c', 't', 'm' || i, '', '', 'quarantined', ` + now + `, 'failed', ` + rare + `, ` + labels + ` FROM numbers`,
		} {
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		for _, of := range []string{"dead", "quarantine"} {
			filter := []string{"--tenant", "acme", "--event-type", "placed"}
			call := func(command string, more ...string) []string {
				return append(append([]string{of, command}, filter...), more...)
			}
			s.says(s.once(exitDone, call("list")...), "m1 ", "m"+last)
			s.says(s.once(exitDone, call("list", "--limit", "1")...), "m1 ", "There may be more: add --after 1\n")
			s.says(s.once(exitDone, call("list", "--after", "1", "--limit", "1")...), "m"+last)
			if n := object[countJSON](s, exitDone, call("count")...); n.Count != 2 {
				t.Errorf("%s: counted %d", of, n.Count)
			}
			s.says(s.once(exitDone, call("groups")...), "1+", "rare", "Only the latest messages were searched")
			none := append(call("groups"), "--topic", "t", "--reason", map[string]string{"dead": "exhausted", "quarantine": "failed"}[of])
			if groups := object[groupsJSON](s, exitDone, none...); !groups.Partial || len(groups.Groups) != 1 {
				t.Errorf("%s: groups %+v", of, groups)
			}
		}
		if list := object[lettersJSON](s, exitDone, "dead", "list", "--tenant", "acme", "--event-type", "placed"); list.Next != 0 {
			t.Errorf("there may be more letters behind %d", list.Next)
		}
	})
}
