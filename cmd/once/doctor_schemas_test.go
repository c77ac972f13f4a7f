package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// Trap 115. A producer writes to the tables in another schema than the forwarder.
func TestTrap115_DoctorFindsTheOtherSetOfTables(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newShell(t, db)
	s.exec(db, `CREATE SCHEMA app`)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{Schema: "app"}))
	if got := s.run(t.Context(), "doctor", "--json").stdout; strings.Contains(got, "schemas\",\n      \"what") {
		t.Errorf("with an empty outbox in another schema the doctor says\n%s", got)
	}

	s.exec(db, `INSERT INTO app.once_outbox (message_id, topic, slot, payload, metadata) VALUES ('m', 't', 1, '', '{}')`)
	out := object[doctorJSON](s, exitFound, "doctor")
	same(t, "an outbox without a forwarder", madeBy(out, "schemas"), finding{
		Check: "schemas",
		What:  `Schema app also contains an outbox with the prefix "once_". It has messages, and no forwarder sends them.`,
		Why:   "A service whose search path leads to that schema writes its events there. A forwarder of schema public does not read them.",
		Do:    "Set the same schema.Config.Schema in all parts, or start a forwarder with --schema app.",
	})
	if out.Schema != "public" {
		t.Errorf("the doctor names schema %q, want public", out.Schema)
	}

	s.env["ONCE_DSN"] = db.DSN + "&search_path=app,public"
	out = object[doctorJSON](s, exitFound, "doctor")
	same(t, "both in the search path", out.Findings, finding{
		Check: "tables",
		What: `schema: it is ambiguous which schema contains the tables: the schemas "app" and "public" of the search path contain tables ` +
			`with the prefix "once_": find out which of them has your messages, and set Config.Schema to it in all parts, ` +
			`or leave only this schema in the search path (options=-csearch_path=public in the data source name)`,
		Why: "The library does not start with these tables, and the other checks of the tables need them.",
		Do:  "Add --schema, or set ONCE_SCHEMA.",
	})

	s.exec(db, `DROP SCHEMA app CASCADE`, `CREATE SCHEMA app`)
	out = object[doctorJSON](s, exitFound, "doctor")
	same(t, "an empty schema comes first", madeBy(out, "schemas"), finding{
		Check: "schemas",
		What:  `The tables are in schema public, but app is the first schema of this login's search path.`,
		Why:   "schema.Up refuses to work, because it would create a second, empty set of tables. A service that calls it does not start.",
		Do:    `Set schema.Config.Schema to "public" in all parts, or ALTER ROLE ... SET search_path = public`,
	})
	s.says(s.once(exitDone, "migrate", "check"), `The tables in schema "public" work with version 3.`)
}

// Trap 116. The doctor's own login may see all rows, but others may not.
func TestTrap116_DoctorFindsRowLevelSecurity(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newShell(t, db)
	s.exec(db, `ALTER TABLE once_parked ENABLE ROW LEVEL SECURITY`)
	same(t, "row level security", madeBy(object[doctorJSON](s, exitFound, "doctor"), "row security"), finding{
		Check: "row security",
		What:  "Row level security is enabled on once_parked. It does not apply to this login, but to others.",
		Why:   "Other logins may not see rows of these tables. PostgreSQL reports no error: messages wait forever, or are handled twice.",
		Do:    "ALTER TABLE ... DISABLE ROW LEVEL SECURITY, or ALTER ROLE ... BYPASSRLS for the logins of the services.",
	})

	s.env["ONCE_DSN"] = loginOf(t, db, "consumer")
	s.says(s.once(exitFound, "migrate", "check"), "row level security may hide rows", "on once_parked")
	s.says(s.once(exitFailed, "parked", "list"), "row level security may hide rows", "on once_parked")
}

// daysBench is a shell for a database whose inbox and sent log are partitioned by day.
type daysBench struct {
	*shell

	db kit.Database
}

// finds fails the test unless the doctor's findings about days are want.
func (b daysBench) finds(when string, want ...finding) {
	b.Helper()
	var out doctorJSON
	kit.OK(b, json.Unmarshal([]byte(b.run(b.Context(), "doctor", "--json").stdout), &out))
	for i := range want {
		want[i].Check = "days"
	}
	same(b.T, when, madeBy(out, "days"), want...)
}

// foreign returns the partitions of a table that do not belong to owner.
func (b daysBench) foreign(table, owner string) (names []string) {
	b.Helper()
	return kit.Lines(b, b.db, `
		SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
		WHERE inhparent = $1::regclass AND relowner <> $2::regrole ORDER BY relname`, table, owner)
}

// notSwept is the finding about a table whose days are not created.
func notSwept(what, sweep, owner string) finding {
	return finding{
		What: "The " + what + " by day has no partition for a coming day.",
		Why:  "No process sweeps it as its owner, so no partition is created or dropped, and the table grows.",
		Do:   sweep + ", with the login " + owner + " or a member of it. Its log says what failed.",
	}
}

func mayNotCreate(what, owner string) finding {
	return finding{
		What: fmt.Sprintf("The owner of the %s, %s, may not create tables in schema public.", what, owner),
		Why:  "The sweep cannot create the partitions of coming days. Rows go to the default partition, and are deleted one by one.",
		Do:   "GRANT USAGE, CREATE ON SCHEMA public TO " + owner,
	}
}

func notOwned(what, owner string, partitions []string) finding {
	return finding{
		What: fmt.Sprintf("Partitions of the %s do not belong to its owner, %s: %s.", what, owner, strings.Join(partitions, ", ")),
		Why:  "The sweep cannot empty or drop them.",
		Do:   fmt.Sprintf("For each of them: ALTER TABLE %s OWNER TO %s", partitions[0], owner),
	}
}

// The doctor names each right that the owner of an inbox or of a sent log by day lacks. The
// test then carries out the remedies that the doctor prints.
func TestDoctorLooksAtTheOwnerOfTablesByDay(t *testing.T) {
	db := kit.PostgresIn(t, "UTF8") // an own database, because rights on it change
	s := newShell(t, db)
	b := daysBench{s, db}
	b.finds("a plain inbox")
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{Inbox: schema.ByDay}))
	s.env["ONCE_INBOX"] = "by_day"
	var first, owner, database string
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT current_user, current_database() || '_login', current_database()`).
		Scan(&first, &owner, &database))
	b.finds("an inbox by day", notSwept("inbox", "Run a service with once.Consumer, or once sweep from cron", first))
	s.says(s.once(exitDone, "sweep", "--keep-sent", "7d"), "The sent log is not partitioned by day")
	b.finds("an inbox that is swept")
	s.says(s.once(exitFound, "migrate", "check", "--sent", "by_day"), "(run: once migrate up --sent by_day)")
	s.once(exitDone, "migrate", "up", "--sent", "by_day")
	s.once(exitDone, "migrate", "check", "--sent", "by_day")
	b.finds("a sent log by day", notSwept("sent log", "Run once sweep --keep-sent from cron, or a forwarder", first))
	s.says(s.once(exitDone, "sweep", "--keep-sent", "7d"), "Dropped 0 days of the sent log.")
	b.finds("a sent log that is swept")

	loginOf(t, db, "consumer") // creates the roles, and drops them in the end
	s.exec(db, fmt.Sprintf(`
		REVOKE CREATE ON SCHEMA public FROM PUBLIC;
		REVOKE TEMPORARY ON DATABASE %s FROM PUBLIC;
		ALTER TABLE once_inbox OWNER TO %[2]s;
		ALTER TABLE once_outbox_sent OWNER TO %[2]s`, database, owner))
	inbox, sent := b.foreign("once_inbox", owner), b.foreign("once_outbox_sent", owner)
	if len(inbox) < 8 || len(sent) < 8 { // a week and the default partition
		t.Fatalf("partitions %q and %q", inbox, sent)
	}
	temporary := finding{
		What: fmt.Sprintf("The owner of the inbox, %s, may not create temporary tables in database %s.", owner, database),
		Why: "While the sweep empties a day, it copies the rows that must stay to a temporary table. Without this right, it empties and drops " +
			"no day, and the inbox grows.",
		Do: fmt.Sprintf("GRANT TEMPORARY ON DATABASE %s TO %s", database, owner),
	}
	lacks := []finding{
		mayNotCreate("inbox", owner), temporary, notOwned("inbox", owner, inbox),
		mayNotCreate("sent log", owner), notOwned("sent log", owner, sent),
	}
	b.finds("another owner", lacks...)
	for _, f := range lacks {
		s.exec(db, strings.TrimPrefix(f.Do, "For each of them: "))
	}
	b.finds("the first partitions have the new owner",
		notOwned("inbox", owner, inbox[1:]), notOwned("sent log", owner, sent[1:]))
	for _, name := range append(inbox[1:], sent[1:]...) {
		s.exec(db, fmt.Sprintf(`ALTER TABLE %s OWNER TO %s`, name, owner))
	}
	b.finds("all remedies were carried out")
}
