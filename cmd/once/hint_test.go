package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// Errors name the value and the remedy.
func TestErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	s := newShell(t, db)
	for command, says := range map[string]string{
		"outbox show 99":                      "99: not found (once outbox list shows the IDs)",
		"outbox retry 99":                     "99: not found (once outbox list shows the IDs)",
		"dead discard 99 --why w":             "99: not found (once dead list shows the IDs)",
		"sent replay 99":                      "99: not found (once sent list shows the IDs)",
		"parked cancel 99 --why w":            "99: not found (once parked list shows the IDs)",
		"quarantine show 99":                  "no such message: 99 (once quarantine list shows the IDs)",
		"quarantine edit 99 --why w --set a=": "no such message: 99 (once quarantine list shows the IDs)",
		"replays stop 99":                     "no such replay: 99 (once replays list shows the IDs)",
		"dead release order-7":                `"order-7" (once outbox blocked shows the blocked keys)`,
		"consumers remove payments t --why w": `consumer "payments" of topic "t": no such consumer (once consumers list`,
		"reconcile ask --topic t":             "set forwarder.Config.KeepSent in all forwarders (once forward has the flag --keep-sent)",
		"mover --once":                        `"watermill_forwarder_topic" (check --forwarder-topic, or name the table with --messages-table)`,
		"status --inbox by_day":               "(leave out --inbox and ONCE_INBOX, or convert the inbox with once migrate up --inbox by_day)",
		"status --dsn sqlite:/no/such/x.db":   "(check the file in ONCE_DSN or --dsn; once migrate up creates a new one)",
	} {
		got := s.run(t.Context(), strings.Fields(command)...)
		if got.code != exitFailed || !strings.Contains(got.stderr, says) {
			t.Errorf("once %s: exit code %d, %s\nwant %s", command, got.code, got.stderr, says)
		}
	}

	address, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/no_such_database"
	s.says(s.once(exitFailed, "status", "--dsn", address.String()),
		"no_such_database", "(check the address and the user in ONCE_DSN or --dsn)")

	s.once(exitDone, "migrate", "up", "--inbox", "by_day")
	s.says(s.once(exitFailed, "status"), "(add --inbox by_day, or set ONCE_INBOX=by_day)")
	s.once(exitDone, "status", "--inbox", "by_day")
}
