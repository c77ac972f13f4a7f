package poison_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
)

func TestTheLatestNoteOnAGroupCounts(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		b.quarantine("payments", "p1")
		group := b.list()[0].Fingerprint
		note := func(text, fingerprint string) {
			t.Helper()
			require.NoError(t, b.store.Note(t.Context(), poison.Act{Actor: "ann", Why: text}, fingerprint))
		}
		note("the gateway is down, ticket 17", group)
		note("the gateway is back", group)
		note("of another group", "other")
		note("to be removed", "gone")
		note("", "gone")
		notes, err := b.store.Notes(t.Context(), group, "gone", "never")
		require.NoError(t, err)
		require.Len(t, notes, 1)
		require.Equal(t, "the gateway is back", notes[group].Text)
		require.Equal(t, "ann", notes[group].Actor)
		require.False(t, notes[group].At.IsZero())
		require.Contains(t, b.audit(), "ann | note | group:"+group+" |  |  | the gateway is back")
		none, err := b.store.Notes(t.Context())
		require.NoError(t, err)
		require.Empty(t, none)
		require.ErrorContains(t, b.store.Note(t.Context(), poison.Act{}, ""), "Actor is empty")
		require.ErrorContains(t, b.store.Note(t.Context(), act, ""), "fingerprint is empty")
	})
}

func TestTrendsCountByHour(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
			_, err := db.ExecContext(t.Context(), `UPDATE once_parked SET last_failed_at = `+when+` WHERE message_id = $2`, minutes, id)
			require.NoError(t, err)
		}
		trends, err := b.store.Trends(t.Context(), poison.Filter{}, group, "never")
		require.NoError(t, err)
		var want poison.Trend
		want[23], want[22], want[0] = 2, 1, 1
		require.Equal(t, map[string]poison.Trend{group: want}, trends)
		require.Equal(t, 4, want.Total())
		require.Equal(t, 2, want.Last())
		trends, err = b.store.Trends(t.Context(), poison.Filter{Consumer: "mail"}, group, other)
		require.NoError(t, err)
		require.Len(t, trends, 1)
		require.Equal(t, 1, trends[other].Total())
	})
}
