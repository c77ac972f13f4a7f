package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
)

// groupRow is a failure group in a list.
type groupRow struct {
	operate.Group

	Trend *trend // nil if the trend is not known
	Note  poison.Note
}

// rowsOf returns groups as rows. The largest group comes first.
func rowsOf(groups []operate.Group) []groupRow {
	groups = slices.Clone(groups)
	largestFirst(groups)
	all := make([]groupRow, len(groups))
	for i, g := range groups {
		all[i].Group = g
	}
	return all
}

// quarantineGroups returns the failure groups of the quarantine with trends and notes.
func (c *Console) quarantineGroups(ctx context.Context, f poison.Filter, groups []operate.Group) ([]groupRow, error) {
	all := rowsOf(groups)
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Fingerprint
	}
	notes, err := c.quarantine.Notes(ctx, names...)
	if err != nil {
		return nil, err
	}
	trends, err := c.quarantine.Trends(ctx, f, names...)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Note = notes[names[i]]
		if trends != nil {
			all[i].Trend = newTrend(trends[names[i]])
		}
	}
	return all, nil
}

// trend contains the bars that show the last 24 hours of a failure group.
type trend struct {
	poison.Trend

	Word string
	Bars []bar
}

// bar is a rectangle in a drawing. The drawing is 20 units high, and 4 units wide for
// each of the 24 hours.
type bar struct{ X, Y, Height int }

const barsHeight = 20

func newTrend(t poison.Trend) *trend {
	all := &trend{Trend: t}
	highest := slices.Max(t[:])
	for i, n := range t {
		height := 1
		if n > 0 {
			height = max(3, n*barsHeight/highest)
		}
		all.Bars = append(all.Bars, bar{4 * i, barsHeight - height, height})
	}
	sum := func(hours ...int) (n int) {
		for _, hour := range hours {
			n += hour
		}
		return n
	}
	const few = 3 // hours
	last, before := sum(t[poison.TrendHours-few:]...), sum(t[poison.TrendHours-2*few:poison.TrendHours-few]...)
	switch {
	case t.Total() == 0:
		all.Word = "quiet"
	case before == 0 && last > 0 && t.Total() == last:
		all.Word = "new"
	case 4*last > 5*before:
		all.Word = "rising"
	case 5*last < 4*before:
		all.Word = "falling"
	default:
		all.Word = "steady"
	}
	return all
}

// postNote stores the note on a failure group.
func (c *Console) postNote(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return formError(err)
	}
	actor, err := c.authorize(r, NoteGroup)
	if err != nil {
		return err
	}
	group := r.PostForm.Get("group")
	if group == "" || len(group) > longestGroup {
		return inputError{errors.New("group is empty or too long")}
	}
	text, err := newText(r.PostForm.Get("note"), "the note")
	if err != nil {
		return err
	}
	if err := c.quarantine.Note(r.Context(), operate.Act{Actor: actor, Why: text}, group); err != nil {
		return fmt.Errorf("note: %w", err)
	}
	redirect(w, link("quarantine", "group", group))
	return nil
}

// longestGroup is the maximum length of a fingerprint, in bytes.
const longestGroup = 200
