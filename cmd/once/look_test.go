package main

import (
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

func TestAudit(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "audit"), "No act matches.")
		commit(s, db, "bad", "m1", "m2")
		forwarded(s, db)
		s.once(exitDone, "dead", "discard", "1", "--why", "a test", "--actor", "bob")
		s.once(exitDone, "dead", "replay", "2", "--why", "repaired")
		all := object[auditJSON](s, exitDone, "audit")
		if len(all.Records) != 2 || all.Records[0].Action != "replay" || all.Records[1].Actor != "bob" || all.Records[1].Why != "a test" {
			t.Fatalf("audit %+v", all)
		}
		one := object[auditJSON](s, exitDone, "audit", "--by", "bob", "--since", "1h")
		if len(one.Records) != 1 || one.Records[0].Subject != "dead:1" {
			t.Errorf("audit %+v", one)
		}
		s.says(s.once(exitDone, "audit", "--limit", "1"), "ACTOR", "repaired", "There may be more: add --before 2")
		s.says(s.once(exitDone, "audit", "--before", "2"), "bob", "discard", "dead:1", "a test")
		s.says(s.once(exitDone, "audit", "--action", "stop"), "No act matches.")
	})
}

func TestVersions(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "versions", "list"), "No aggregate matches.")
		s.says(s.once(exitDone, "versions", "waiting"), "No message waits for a missing version.")
		now := `now()`
		if db.Dialect == "sqlite" {
			now = `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
		}
		for _, query := range []string{
			`INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
			 VALUES ('payments', 'order', '7', 3, 1, ` + now + `)`,
			`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, early_since, early_of, early_version)
			 VALUES ('payments', 'orders', 'm5', '', '', 'waiting', ` + now + `, ` + now + `, '5:order7', 5)`,
		} {
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		list := object[versionsJSON](s, exitDone, "versions", "list", "--consumer", "payments")
		if len(list.Versions) != 1 || list.Versions[0].Version != 3 || list.More {
			t.Errorf("versions %+v", list)
		}
		s.says(s.once(exitDone, "versions", "list", "--limit", "1"), "COMPLETE FROM", "order", "raise --limit")
		held := object[waitingListJSON](s, exitDone, "versions", "waiting", "--aggregate-type", "order", "--aggregate-id", "7")
		if len(held.Messages) != 1 || held.Messages[0].Version != 5 || held.Messages[0].Last != 3 || !held.Messages[0].Known {
			t.Errorf("waiting %+v", held)
		}
		s.says(s.once(exitDone, "versions", "waiting"), "LAST APPLIED", "m5")
		s.says(s.once(exitUsage, "versions", "waiting", "--aggregate-id", "7"), "give both or none")
	})
}
