package quarantine_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

func TestTheLatestNoteOnAGroupCounts(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "p1")
		group := b.list()[0].Fingerprint
		note := func(text, fingerprint string) {
			t.Helper()
			kit.OK(t, b.store.Note(t.Context(), operate.Act{Actor: "ann", Why: text}, fingerprint))
		}
		note("the gateway is down, ticket 17", group)
		note("the gateway is back", group)
		note("of another group", "other")
		note("to be removed", "gone")
		note("", "gone")
		notes, err := b.store.Notes(t.Context(), group, "gone", "never")
		kit.OK(t, err)
		if len(notes) != 1 {
			t.Fatalf("%d notes, want 1: %+v", len(notes), notes)
		}
		if notes[group].Text != "the gateway is back" {
			t.Fatalf(`notes[group].Text is %q, want "the gateway is back"`, notes[group].Text)
		}
		if notes[group].Actor != "ann" {
			t.Fatalf(`notes[group].Actor is %q, want "ann"`, notes[group].Actor)
		}
		if notes[group].At.IsZero() {
			t.Fatal("notes[group].At is zero")
		}
		if got, want := b.Audits(), "ann | note | group:"+group+" |  | the gateway is back"; !slices.Contains(got, want) {
			t.Fatalf("b.Audits is %q, without %q", got, want)
		}
		none, err := b.store.Notes(t.Context())
		kit.OK(t, err)
		if len(none) != 0 {
			t.Fatalf("none is %+v, want none", none)
		}
		if err := b.store.Note(t.Context(), operate.Act{}, ""); err == nil || !strings.Contains(err.Error(), "Actor is empty") {
			t.Fatalf(`Note: got %v, want an error with "Actor is empty"`, err)
		}
		if err := b.store.Note(t.Context(), act, ""); err == nil || !strings.Contains(err.Error(), "fingerprint is empty") {
			t.Fatalf(`Note: got %v, want an error with "fingerprint is empty"`, err)
		}
	})
}

func TestTrendsCountByHour(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		b.quarantine("payments", "p1", "p2", "p3", "p4", "p5")
		b.quarantine("mail", "m1")
		entries := b.list()
		group, other := entries[0].Fingerprint, entries[5].Fingerprint
		for id, minutes := range map[string]int{"p2": 30, "p3": 90, "p4": 23*60 + 30, "p5": 25 * 60} {
			when := `now() - $1 * interval '1 minute'`
			if db.Dialect == "sqlite" {
				when = `CAST(unixepoch('subsec') * 1000 AS INTEGER) - $1 * 60000`
			}
			kit.Exec(t, db, `UPDATE once_parked SET last_failed_at = `+when+` WHERE message_id = $2`, minutes, id)
		}
		trends, err := b.store.Trends(t.Context(), operate.Filter{}, group, "never")
		kit.OK(t, err)
		var want quarantine.Trend
		want[23], want[22], want[0] = 2, 1, 1
		if wanted := map[string]quarantine.Trend{group: want}; !maps.Equal(trends, wanted) {
			t.Fatalf("trends are %v, want %v", trends, wanted)
		}
		if got := want.Total(); got != 4 {
			t.Fatalf("want.Total is %d, want 4", got)
		}
		if got := want.Last(); got != 2 {
			t.Fatalf("want.Last is %d, want 2", got)
		}
		trends, err = b.store.Trends(t.Context(), operate.Filter{Consumer: "mail"}, group, other)
		kit.OK(t, err)
		if len(trends) != 1 {
			t.Fatalf("%d trends, want 1: %v", len(trends), trends)
		}
		if got := trends[other].Total(); got != 1 {
			t.Fatalf("trends[other].Total is %d, want 1", got)
		}
	})
}

// Trends reads a limited number of entries. If more entries failed in the last 24
// hours, it returns nil.
func TestTrendsOfVeryManyEntriesAreLeftOut(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.EmptyPostgres(t)
	db.SetMaxOpenConns(1) // RowsRead counts the reads of a single connection
	b := newBench(t, db, nil)
	fill := func(n int, at string) {
		t.Helper()
		kit.Exec(t, db, `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint,
				last_failed_at)
			SELECT 'c', 't', '', '', '', 'quarantined', now(), 'f' || i % 2, `+at+` FROM generate_series(1, $1::int) AS i`, n)
	}
	trends := func() map[string]quarantine.Trend {
		t.Helper()
		found, err := b.store.Trends(t.Context(), operate.Filter{}, "f0")
		kit.OK(t, err)
		return found
	}
	fill(40_000, `now() - interval '2 days'`)
	fill(20_000, `now() - interval '1 minute'`)
	before := kit.RowsRead(t, db, "once_parked")
	if n := trends()["f0"].Total(); n != 10_000 {
		t.Errorf("the trend has %d failures, want 10000", n)
	}
	if rows := kit.RowsRead(t, db, "once_parked") - before; rows > 40_100 {
		t.Errorf("%d rows were read, want at most 40100", rows)
	}
	fill(1, `now()`)
	if found := trends(); found != nil {
		t.Errorf("the trends of too many entries are %v", found)
	}
}
