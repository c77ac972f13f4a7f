package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/status"
)

var quarantineReasons = []string{
	chain.ReasonExhausted, chain.ReasonFailed, chain.ReasonPermanent, chain.ReasonCrashed, chain.ReasonInvalidID,
	chain.ReasonCollision, chain.ReasonUndecodable, chain.ReasonGap, chain.ReasonStale,
	chain.ReasonCancelled,
}

const groupRows = 50

type quarantinePage struct {
	Filter  selection
	Reasons []string
	Groups  []groupRow
	One     *groupRow // selected group, or nil
	More    string    // URL of the page with more groups
	Partial bool      // whether Groups contains only the groups of the latest entries
	Total   status.Count
	Entries []quarantine.Entry
	Next    string
	Waiting []quarantine.Entry // replayed entries that wait for their handler
	May     buttons
	MayNote bool
}

func (c *Console) getQuarantine(w http.ResponseWriter, r *http.Request) error {
	s, err := selected(r, "quarantine", quarantineReasons, nil)
	if err != nil {
		return err
	}
	body := quarantinePage{
		Filter: s, Reasons: quarantineReasons, May: c.buttons(r, ReplayQuarantined, DiscardQuarantined), MayNote: c.may(r, NoteGroup),
	}
	groups := s.filter("quarantine")
	groups.AfterID, groups.AfterGroup, groups.Limit = 0, s.AfterGroup, groupRows
	part, err := c.quarantine.Groups(r.Context(), groups)
	if err != nil {
		return err
	}
	found := part.Groups
	body.Partial = part.Partial
	body.More = moreGroups("quarantine", s, found)
	all := s.filter("quarantine")
	all.AfterID, all.Limit = 0, mostCounted+1
	n, err := c.quarantine.Count(r.Context(), all)
	if err != nil {
		return err
	}
	body.Total = totalOf(n)
	if s.Group != "" && len(found) == 0 { // the group has no entries now, but it can have a note
		found = append(found, operate.Group{Fingerprint: s.Group})
	}
	if body.Groups, err = c.quarantineGroups(r.Context(), s.filter("quarantine"), found); err != nil {
		return err
	}
	if s.Group != "" && len(body.Groups) > 0 {
		body.One = &body.Groups[0]
		if body.One.Count == 0 {
			body.Groups = nil
		}
	}
	list := s.filter("quarantine")
	list.Limit = rows
	entries, err := c.quarantine.List(r.Context(), list)
	if err != nil {
		return err
	}
	body.Entries, body.Next = entries.Rows, nextPage("quarantine", s, entries.Next)
	waiting := s.filter("quarantine")
	waiting.AfterID, waiting.Limit = 0, 10
	replayed, err := c.quarantine.Replayed(r.Context(), waiting)
	if err != nil {
		return err
	}
	body.Waiting = replayed.Rows
	return c.show(w, r, page{Title: "Quarantine", Template: "quarantine", Section: "quarantine", Body: body})
}

type entryPage struct {
	Entry       quarantine.Entry
	Note        quarantine.Note // note on the failure group
	Content     content
	Quarantined bool
	May         buttons
}

// Entries in this state can be replayed, edited and discarded.
const quarantined = "quarantined"

func (c *Console) getEntry(w http.ResponseWriter, r *http.Request) error {
	id, e, err := named(r, c.quarantine.Get)
	if err != nil {
		return err
	}
	notes, err := c.quarantine.Notes(r.Context(), e.Fingerprint)
	if err != nil {
		return err
	}
	body := entryPage{Entry: e, Quarantined: e.State == quarantined, Note: notes[e.Fingerprint]}
	if body.Quarantined {
		body.May = c.buttons(r, ReplayQuarantined, EditQuarantined, DiscardQuarantined)
	}
	if e.Message == nil {
		body.Content = content{Problem: "The stored message is damaged: " + fmt.Sprint(e.MessageErr)}
	} else {
		body.Content = c.content(r, "quarantine", id, e.Topic, e.Message)
	}
	if body.Content.Changed || body.Content.Problem != "" {
		delete(body.May, EditQuarantined)
	}
	return c.show(w, r, page{Title: fmt.Sprintf("Entry %d", id), Template: "entry", Section: "quarantine", Body: body})
}

// named returns the row that the query names.
func named[Row any](r *http.Request, get func(context.Context, int64) (Row, error)) (id int64, row Row, err error) {
	if id, err = idOf(r); err == nil {
		row, err = get(r.Context(), id)
	}
	return id, row, err
}

func idOf(r *http.Request) (int64, error) {
	text := r.URL.Query().Get("id")
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, inputError{fmt.Errorf("id %q is not a positive number", text)}
	}
	return id, nil
}

type groupRow struct {
	operate.Group

	Trend *trend // nil if the trend is not known
	Note  quarantine.Note
}

func rowsOf(groups []operate.Group) []groupRow {
	groups = slices.Clone(groups)
	largestFirst(groups)
	all := make([]groupRow, len(groups))
	for i, g := range groups {
		all[i].Group = g
	}
	return all
}

func (c *Console) quarantineGroups(ctx context.Context, f operate.Filter, groups []operate.Group) ([]groupRow, error) {
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
	quarantine.Trend

	Word string
	Bars []bar `api:"-"`
}

// bar is in a drawing 20 units high, and 4 units wide for each of the 24 hours.
type bar struct{ X, Y, Height int }

const barsHeight = 20

func newTrend(t quarantine.Trend) *trend {
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
	last, before := sum(t[quarantine.TrendHours-few:]...), sum(t[quarantine.TrendHours-2*few:quarantine.TrendHours-few]...)
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

func (c *Console) replayQuarantined() act {
	return act{
		Name: "replay", action: ReplayQuarantined, Section: "quarantine", Title: "Replay quarantined messages", Button: "Start the replay",
		HasRate: true, HasPlan: true, reasons: quarantineReasons,
		Warning: "The messages go back to the consumer that failed, and to no other. Fix the cause first. " +
			"With a canary, a few messages are replayed first, and the others only if these succeed.",
		Force: "also run messages that the consumer has handled in the meantime",
		preview: func(ctx context.Context, s selection, p operate.Plan) (preview, error) {
			groups, err := c.quarantine.DryRun(ctx, s.filter("quarantine"), p)
			if err != nil {
				return preview{}, err
			}
			shown := previewOf(groups, false)
			shown.Notes, err = c.pausedNotes(ctx, groups)
			return shown, err
		},
		run: func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error) {
			p.Progress = func(r operate.Report) { progress(replayReport(r)) }
			done, err := c.quarantine.ReplayMatching(ctx, who, s.filter("quarantine"), p)
			return replayReport(done.Report), err
		},
	}
}

func replayReport(r operate.Report) report {
	return report{Total: r.Total, Done: r.Resolved, Replay: r}
}

func (c *Console) discardQuarantined() act {
	return act{
		Name: "discard", action: DiscardQuarantined, Section: "quarantine", Title: "Discard quarantined messages", Button: "Discard",
		Danger: true, reasons: quarantineReasons,
		Warning: "The messages are never handled, and neither are late copies of them. " +
			"You can read the entries until the retention of the inbox ends.",
		preview: func(ctx context.Context, s selection, _ operate.Plan) (preview, error) {
			groups, err := c.quarantine.DryRun(ctx, s.filter("quarantine"), operate.Plan{})
			return previewOf(groups, false), err
		},
		run: func(ctx context.Context, who operate.Act, s selection, _ operate.Plan, _ func(report)) (report, error) {
			n, err := c.quarantine.DiscardMatching(ctx, who, s.filter("quarantine"))
			return report{Total: s.Limit, Done: n}, err
		},
	}
}
