package console

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/status"
)

var quarantineReasons = []string{
	poison.ReasonExhausted, poison.ReasonFailed, poison.ReasonPermanent, poison.ReasonCrashed, poison.ReasonInvalidID,
	poison.ReasonCollision, poison.ReasonUndecodable, poison.ReasonGap, poison.ReasonStale,
	poison.ReasonCancelled,
}

// groupRows is the maximum number of failure groups that a page shows.
const groupRows = 50

// quarantinePage shows the failure groups of the quarantine, and the entries that match
// the filter.
type quarantinePage struct {
	Filter  selection
	Reasons []string
	Groups  []groupRow
	One     *groupRow // selected group, or nil
	More    string    // URL of the page with more groups
	Partial bool      // whether Groups contains only the groups of the latest entries
	Total   status.Count
	Entries []poison.Entry
	Next    string
	Waiting []poison.Entry // replayed entries that wait for their handler
	May     buttons
	MayNote bool
}

func (c *Console) getQuarantine(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	s, err := newSelection(r.URL.Query())
	if err == nil {
		err = s.check(quarantineReasons, nil)
	}
	if err != nil {
		return err
	}
	body := quarantinePage{
		Filter: s, Reasons: quarantineReasons, May: c.buttons(r, ReplayQuarantined, DiscardQuarantined), MayNote: c.may(r, NoteGroup),
	}
	groups := s.poison()
	groups.AfterID, groups.AfterGroup, groups.Limit = 0, s.AfterGroup, groupRows
	part, err := c.quarantine.Groups(r.Context(), groups)
	if err != nil {
		return err
	}
	found := part.Groups
	body.Partial = part.Partial
	body.More = moreGroups("quarantine", s, found)
	all := s.poison()
	all.AfterID, all.Limit = 0, mostCounted+1
	n, err := c.quarantine.Count(r.Context(), all)
	if err != nil {
		return err
	}
	body.Total = totalOf(n)
	if s.Group != "" && len(found) == 0 { // the group has no entries now, but it can have a note
		found = append(found, operate.Group{Fingerprint: s.Group})
	}
	if body.Groups, err = c.quarantineGroups(r.Context(), s.poison(), found); err != nil {
		return err
	}
	if s.Group != "" && len(body.Groups) > 0 {
		body.One = &body.Groups[0]
		if body.One.Count == 0 {
			body.Groups = nil
		}
	}
	list := s.poison()
	list.Limit = rows
	entries, err := c.quarantine.List(r.Context(), list)
	if err != nil {
		return err
	}
	body.Entries, body.Next = entries.Entries, nextPage("quarantine", s, entries.Next)
	waiting := s.poison()
	waiting.AfterID, waiting.Limit = 0, 10
	replayed, err := c.quarantine.Replayed(r.Context(), waiting)
	if err != nil {
		return err
	}
	body.Waiting = replayed.Entries
	return c.show(w, r, page{Title: "Quarantine", Template: "quarantine", Section: "quarantine", Body: body})
}

// entryPage shows one entry.
type entryPage struct {
	Entry       poison.Entry
	Note        poison.Note // note on the failure group
	Content     content
	Quarantined bool
	May         buttons
}

// quarantined is the value of poison.Entry.State for entries that can be replayed,
// edited and discarded.
const quarantined = "quarantined"

func (c *Console) getEntry(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	e, err := c.quarantine.Get(r.Context(), id)
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

// idOf returns the ID in the query of a page that shows one message.
func idOf(r *http.Request) (int64, error) {
	text := r.URL.Query().Get("id")
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, inputError{fmt.Errorf("id %q is not a positive number", text)}
	}
	return id, nil
}
