package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

func TestAnArchiveKeepsTheLatestReports(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		p := newPlace(t, db)
		a, err := NewArchive(db.DB, p.config)
		require.NoError(t, err)
		none, err := a.List(t.Context(), 0)
		require.NoError(t, err)
		require.Empty(t, none)
		_, err = a.Get(t.Context(), 1)
		require.ErrorIs(t, err, ErrNotKept)

		at := time.Now().UTC().Truncate(time.Millisecond)
		r := Report{Consumer: billed, Topics: []string{topic}, From: at, Until: at, AsOf: at, Sent: 7, Known: 5}
		for n := range keptMessages + 1 {
			r.Missing = append(r.Missing, Missing{MessageID: fmt.Sprint(n), Topic: topic, SentLogID: int64(n), SentAt: at, LastSentAt: at})
		}
		r.Phantoms = []Phantom{{MessageID: "p", State: Quarantined, At: at}}
		require.NoError(t, a.Keep(t.Context(), r, Report{Consumer: "mail", Missing: []Missing{}}))
		kept, err := a.Get(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, keptMessages+1, kept.Missing)
		require.Equal(t, 1, kept.Phantoms)
		require.InDelta(t, at.Unix(), kept.At.Unix(), 60)
		r.Missing = r.Missing[:keptMessages]
		require.Equal(t, r, kept.Report)

		for range keptReports {
			require.NoError(t, a.Keep(t.Context(), Report{Consumer: billed}))
		}
		seen := map[string]int{}
		for before := int64(0); ; {
			page, err := a.List(t.Context(), before)
			require.NoError(t, err)
			if len(page) == 0 {
				break
			}
			require.LessOrEqual(t, len(page), listedReports)
			for _, k := range page {
				require.True(t, before == 0 || k.ID < before)
				before = k.ID
				seen[k.Report.Consumer]++
			}
		}
		require.Equal(t, map[string]int{billed: keptReports, "mail": 1}, seen)
		_, err = a.Get(t.Context(), 1)
		require.ErrorIs(t, err, ErrNotKept)
	})
	_, err := NewArchive(nil, schema.Config{})
	require.ErrorContains(t, err, "db is nil")
}
