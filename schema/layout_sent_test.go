package schema_test

import (
	"errors"
	"os"
	"regexp"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

var sentByDay = schema.Config{Sent: schema.ByDay}

// backToPlain finds the SQL in the docs that makes the sent log a single table again.
var backToPlain = regexp.MustCompile("(?s)```\n(BEGIN;\nALTER TABLE once_outbox_sent .*?)```")

func TestUpConvertsPlainSentLogToByDay(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	exec := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	send := func() (id int) {
		t.Helper()
		err := db.QueryRowContext(t.Context(), `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
			VALUES (1, 'm', 't', '', '{}', now()) RETURNING id`).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	check := func(config schema.Config, want string) {
		t.Helper()
		err := schema.Check(t.Context(), db.DB, config)
		if want == "" && err != nil || want != "" && (!errors.Is(err, schema.ErrLayout) || err.Error() != "schema: "+want) {
			t.Errorf("Check of %+v: %v, want %q", config, err, want)
		}
	}
	first := send()
	check(schema.Config{}, "")
	check(schema.Config{Sent: schema.Plain}, "")
	check(sentByDay, `the table has another layout: "once_outbox_sent" has no partitions by day: `+
		`run schema.Up, or apply the end of schema.SQL`)
	for range 2 {
		if err := schema.Up(t.Context(), db.DB, sentByDay); err != nil {
			t.Fatal(err)
		}
	}
	check(schema.Config{}, "")
	check(sentByDay, "")
	const partitioned = `the table has another layout: "once_outbox_sent" has partitions by day: set Config.Sent to schema.ByDay`
	check(schema.Config{Sent: schema.Plain}, partitioned)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Errorf("Up of the zero value: %v", err)
	}
	err := schema.Up(t.Context(), db.DB, schema.Config{Sent: schema.Plain})
	if !errors.Is(err, schema.ErrLayout) || err.Error() != "schema: up: "+partitioned {
		t.Errorf("Up to Plain: %v", err)
	}
	if second := send(); second != first+1 {
		t.Errorf("ID %d follows %d", second, first)
	}

	docs, err := os.ReadFile("../docs/operating-the-forwarder.md")
	if err != nil {
		t.Fatal(err)
	}
	back := backToPlain.FindSubmatch(docs)
	if back == nil {
		t.Fatal("the docs do not say how to go back")
	}
	exec(string(back[1]))
	check(schema.Config{Sent: schema.Plain}, "")
	if third := send(); third != first+2 {
		t.Errorf("ID %d, want %d", third, first+2)
	}
	if err := schema.Up(t.Context(), db.DB, sentByDay); err != nil {
		t.Errorf("second conversion: %v", err)
	}
}

func TestSQLWithBothLayoutsEqualsUp(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	config := schema.Config{Prefix: "mine_", Inbox: schema.ByDay, Sent: schema.ByDay}
	text, err := schema.SQL(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	if err := schema.Check(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatalf("Up after SQL: %v", err)
	}
}
