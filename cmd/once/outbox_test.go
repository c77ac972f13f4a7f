package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// stuck makes the message of a topic back off, and blocks its ordering key.
func stuck(s *shell, db kit.Database, id string) {
	s.Helper()
	due, since := `now() + interval '1 hour'`, `now()`
	if db.Dialect == "sqlite" {
		due, since = `CAST(unixepoch('subsec') * 1000 AS INTEGER) + 3600000`, `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
	}
	for _, query := range []string{
		`UPDATE once_outbox SET due_at = ` + due + `, failing_since = ` + since + `, attempts = 4, last_error = 'NO_ROUTE', ordering_key = 'k'
		 WHERE message_id = '` + id + `'`,
		`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
		 SELECT 'k', position, position, 'refused' FROM once_outbox WHERE message_id = '` + id + `'`,
	} {
		kit.Exec(s, db, query)
	}
}

func TestOutboxPause(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		commit(s, db, "mails", "m1")
		s.says(s.once(exitDone, "outbox", "paused"), "Nothing is paused.")
		s.says(s.once(exitDone, "outbox", "pause", "--topic", "mails", "--why", "no server"), `Paused topic "mails".`)
		s.says(s.once(exitDone, "outbox", "pause", "--tenant", "acme", "--why", "too loud"), `Paused tenant "acme".`)
		s.says(s.once(exitDone, "outbox", "paused"), "mails", "no server", "acme", "too loud")
		s.says(s.once(exitDone, "outbox", "list"), "paused, due")
		s.says(s.once(exitDone, "outbox", "topics"), ", paused")
		s.says(s.once(exitDone, "status"), `: topic "mails", by `, "no server", `: tenant "acme"`)
		// Two pauses of one millisecond are in the order of their names.
		if pauses := object[statusJSON](s, exitDone, "status").Outbox.Pauses; len(pauses) != 2 || pauses[0].Topic+pauses[1].Topic != "mails" {
			t.Errorf("status %+v", pauses)
		}
		isAcme := func(p pauseJSON) bool { return p.Tenant == "acme" && p.Why == "too loud" }
		if pauses := object[pausedJSON](s, exitDone, "outbox", "paused").Pauses; len(pauses) != 2 || !slices.ContainsFunc(pauses, isAcme) {
			t.Errorf("paused %+v", pauses)
		}
		s.says(s.once(exitDone, "outbox", "resume", "--topic", "mails"), `Resumed topic "mails".`)
		s.says(s.once(exitFailed, "outbox", "resume", "--topic", "mails"), "not paused", "once outbox paused lists")
		s.says(s.once(exitDone, "audit", "--action", "pause"), "topic:mails", "tenant:acme", "no server")
	})
}

func TestOutbox(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "outbox", "list"), "No message of the outbox matches.")
		s.says(s.once(exitDone, "outbox", "blocked"), "No ordering key is blocked.")
		commit(s, db, "orders", "m1", "m2")
		commit(s, db, "stock", "m3")
		stuck(s, db, "m2")

		list := object[pendingListJSON](s, exitDone, "outbox", "list", "--topic", "orders")
		if len(list.Messages) != 2 || list.Messages[1].State != "backing_off" || list.Messages[1].Error != "NO_ROUTE" {
			t.Fatalf("list %+v", list)
		}
		id := fmt.Sprint(list.Messages[1].ID)
		s.says(s.once(exitDone, "outbox", "list"), "due", "backing off until", "NO_ROUTE")
		s.says(s.once(exitDone, "outbox", "list", "--limit", "1"), "There may be more: add --after 1")
		s.says(s.once(exitDone, "outbox", "show", id), "ordering key:   k", "attempts:       4", `{"of":"m2"}`, "tenant")
		s.says(s.once(exitFailed, "outbox", "show", "99"), "not found")
		shown := object[pendingJSON](s, exitDone, "outbox", "show", id)
		if *shown.Payload != `{"of":"m2"}` || time.Until(shown.DueAt) < time.Minute {
			t.Errorf("show %+v", shown)
		}
		if n := object[partJSON](s, exitDone, "outbox", "count", "--state", "due"); n != (partJSON{Count: 2}) {
			t.Errorf("count %+v", n)
		}
		topics := object[topicsJSON](s, exitDone, "outbox", "topics").Topics
		if len(topics) != 2 || topics[0].BackingOff != 1 || topics[1].Due != 1 {
			t.Errorf("topics %+v", topics)
		}
		s.says(s.once(exitDone, "outbox", "topics"), "BACKING OFF", "stock")
		keys := object[blockedJSON](s, exitDone, "outbox", "blocked").Keys
		if len(keys) != 1 || fmt.Sprint(keys[0].Head) != id || keys[0].Reason != "refused" || keys[0].Attempts != 4 {
			t.Errorf("blocked %+v", keys)
		}
		s.says(s.once(exitDone, "outbox", "blocked", "--ordering-key", "k"), "NEXT TRY (UTC)", "refused")

		s.says(s.once(exitDone, "outbox", "retry", "--topic", "orders"), "This would make due 1 message. Nothing was changed")
		s.says(s.once(exitUsage, "outbox", "retry", "--state", "blocked"), "can be tried now")
		s.says(s.once(exitDone, "outbox", "retry", "--topic", "orders", "--yes"), "Made due 1 message.")
		stuckAgain := object[pendingListJSON](s, exitDone, "outbox", "list", "--state", "backing_off")
		if len(stuckAgain.Messages) != 0 {
			t.Errorf("still backing off: %+v", stuckAgain)
		}
		s.once(exitDone, "outbox", "retry", id)

		s.says(s.once(exitUsage, "outbox", "cancel", id), "say why with --why")
		kit.Exec(t, db, `
			UPDATE once_slots SET owner = 'x', lease_until = (SELECT MAX(created_at) FROM once_outbox)`)
		s.says(s.once(exitDone, "outbox", "cancel", "--all"), "This would cancel 3 messages")
		s.once(exitDone, "outbox", "cancel", id, "--why", "a test")
		change := object[changeJSON](s, exitDone, "outbox", "cancel", "--all", "--why", "a test", "--yes")
		if change.Changed != 2 || change.Matched != 2 {
			t.Errorf("cancel %+v", change)
		}
		s.says(s.once(exitDone, "dead", "list", "--reason", "cancelled"), "cancelled by ann: a test")
	})
}

// A message that a forwarder may be sending is cancelled only with --force.
func TestOutboxCancelNeedsForce(t *testing.T) {
	db := kit.SQLite(t)
	s := newShell(t, db)
	commit(s, db, "orders", "m1")
	if _, err := db.ExecContext(t.Context(),
		`UPDATE once_slots SET owner = 'x', lease_until = CAST(unixepoch('subsec') * 1000 AS INTEGER) + 3600000`); err != nil {
		t.Fatal(err)
	}
	s.says(s.once(exitFailed, "outbox", "cancel", "1", "--why", "w"), "a forwarder may be sending it", "(add --force)")
	s.says(s.once(exitDone, "outbox", "cancel", "--all"), "This would cancel 0 messages. 1 more message would need --force")
	s.says(s.once(exitFound, "outbox", "cancel", "--all", "--why", "w", "--yes"),
		"1 message was skipped (1): each needs --force, or somebody else was changing it.")
	change := object[changeJSON](s, exitFailed, "outbox", "cancel", "1", "98", "99", "--why", "w", "--force")
	if change.Changed != 1 {
		t.Errorf("cancel %+v", change)
	}
	s.says(s.once(exitFailed, "dead", "replay", "1", "99", "--force"), "Replayed 1 message.", "1 of 2 messages: not found")
}

// --force does not help while another transaction changes the row.
func TestOutboxCancelSaysWhySkippedInSpiteOfForce(t *testing.T) {
	db := kit.Postgres(t)
	s := newShell(t, db)
	commit(s, db, "orders", "m1")
	tx := kit.Begin(t, db)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `SELECT FROM once_outbox FOR UPDATE`)
	s.says(s.once(exitFound, "outbox", "cancel", "--all", "--why", "w", "--force", "--yes"),
		"1 message was skipped (1): somebody else was changing them; run the command again.")
}

// If messages wait because a dead letter blocks their ordering key, each command that
// looks at the outbox names the key, the letter and the way out.
func TestKeyBlockedByADeadLetterIsNamed(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		for n := range 5 { // the positions are below those of the sequence
			s.exec(db,
				fmt.Sprintf(`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts,
					last_error, reason, unknown)
					VALUES (-%[1]d, 'd%[1]d', 't', 'it''s-%[1]d', '', '{}', %[2]s, 1, 'e', 'exhausted', 1 = 0)`, n, daysAgo(db, 1)),
				fmt.Sprintf(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
					VALUES ('it''s-%[1]d', -%[1]d, -%[1]d, 'dead')`, n))
		}
		status := object[statusJSON](s, exitDone, "status")
		if keys := status.Outbox.DeadKeys; len(keys) != 3 || keys[0] != (deadKeyJSON{"it's-0", 1}) || status.Outbox.BlockedByDead.N != 5 {
			t.Errorf("status: %+v", status.Outbox)
		}
		const remedy = `once dead replay 1 sends the letter again, once dead discard 1 gives it up, and once dead release 'it'\''s-0' sends`
		s.says(s.once(exitDone, "status"), `ordering key "it's-0" is blocked by dead letter 1: `+remedy,
			"5 ordering keys in all: once outbox blocked")
		s.says(s.once(exitDone, "outbox", "blocked"), "dead letter 1 ", "dead letter 5 ", remedy)
		s.exec(db, `INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata)
			VALUES ('behind', 't', 'it''s-3', 0, '', '{}')`)
		s.says(s.once(exitDone, "outbox", "list"), "blocked by dead letter 4")
		page := object[pendingListJSON](s, exitDone, "outbox", "list")
		if len(page.Messages) != 1 || page.Messages[0].BlockedBy != -3 || page.Messages[0].Letter != 4 {
			t.Fatalf("outbox list: %+v", page)
		}
		s.says(s.once(exitDone, "outbox", "show", fmt.Sprint(page.Messages[0].ID)), "blocked by dead letter 4")
		found := object[doctorJSON](s, exitFound, "doctor")
		var all []string
		for _, f := range found.Findings {
			if f.Check == "blocked keys" {
				all = append(all, f.What+" "+f.Do)
			}
		}
		if text := strings.Join(all, "\n"); len(all) != 3 || !strings.Contains(text, `"it's-0" is blocked by dead letter 1`) ||
			!strings.Contains(text, remedy) || !strings.Contains(text, "5 ordering keys in all") {
			t.Errorf("doctor: %s", text)
		}
	})
}
