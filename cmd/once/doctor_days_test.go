package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// ofDays returns what the doctor finds about the days of the inbox.
func ofDays(s *shell) (found []finding) {
	s.Helper()
	var out doctorJSON
	if err := json.Unmarshal([]byte(s.run(s.Context(), "doctor", "--json").stdout), &out); err != nil {
		s.Fatal(err)
	}
	for _, f := range out.Findings {
		if f.Check == "days" {
			found = append(found, f)
		}
	}
	return found
}

// The doctor names each right that the owner of an inbox by day lacks. The test then carries
// out the remedies that the doctor prints.
func TestDoctorLooksAtTheOwnerOfAnInboxByDay(t *testing.T) {
	db := testkit.PostgresIn(t, "UTF8") // an own database, because rights on it change
	s := newShell(t, db)
	if found := ofDays(s); len(found) != 0 {
		t.Errorf("a plain inbox: %+v", found)
	}
	if err := schema.Up(t.Context(), db.DB, schema.Config{Inbox: schema.ByDay}); err != nil {
		t.Fatal(err)
	}
	s.env["ONCE_INBOX"] = "by_day"
	expect := func(what ...string) (do []string) {
		t.Helper()
		found := ofDays(s)
		for i, f := range found {
			do = append(do, f.Do)
			if i < len(what) && !strings.Contains(f.What, what[i]) {
				t.Errorf("found %q, want %q", f.What, what[i])
			}
		}
		if len(found) != len(what) {
			t.Errorf("found %+v, want %d findings", found, len(what))
		}
		return do
	}
	expect("The inbox by day has no partition for a coming day")
	s.says(s.once(exitDone, "sweep", "--keep-sent", "7d"), "The sent log is not partitioned by day")
	expect()
	s.says(s.once(exitFound, "migrate", "check", "--sent", "by_day"), "(run: once migrate up --sent by_day)")
	s.once(exitDone, "migrate", "up", "--sent", "by_day")
	s.once(exitDone, "migrate", "check", "--sent", "by_day")
	expect("The sent log by day has no partition for a coming day")
	s.says(s.once(exitDone, "sweep", "--keep-sent", "7d"), "Dropped 0 days of the sent log.")
	expect()

	loginOf(t, db, "consumer") // creates the roles, and drops them in the end
	var owner, database string
	err := db.QueryRowContext(t.Context(), `SELECT current_database() || '_login', current_database()`).Scan(&owner, &database)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	exec(fmt.Sprintf(`
		REVOKE CREATE ON SCHEMA public FROM PUBLIC;
		REVOKE TEMPORARY ON DATABASE %s FROM PUBLIC;
		ALTER TABLE once_inbox OWNER TO %s`, database, owner))
	do := expect("may not create tables in schema public", "may not create temporary tables in database "+database,
		"do not belong to its owner, "+owner)
	for _, text := range do {
		exec(strings.TrimPrefix(text, "For each of them: "))
	}
	rest := expect("do not belong to its owner") // the other partitions
	if len(rest) == 1 && strings.Contains(rest[0], "once_inbox_default ") {
		t.Errorf("the remedy names a partition that was given to the owner: %s", rest[0])
	}
}
