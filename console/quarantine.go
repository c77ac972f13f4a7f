package console

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
)

var quarantineReasons = []string{
	poison.ReasonExhausted, poison.ReasonFailed, poison.ReasonPermanent, poison.ReasonCrashed, poison.ReasonInvalidID,
	poison.ReasonCollision, poison.ReasonUndecodable, poison.ReasonGap, poison.ReasonStale,
	poison.ReasonCancelled,
}

// groupRows is how many failure groups a page shows.
const groupRows = 50

// quarantinePage is the quarantine: failure groups first, and the entries that match
// the filter.
type quarantinePage struct {
	Filter  selection
	Reasons []string
	Groups  []groupRow
	One     *groupRow // the group that is selected
	More    string    // URL of more groups
	Total   int
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
	found, err := c.quarantine.Groups(r.Context(), groups)
	if err != nil {
		return err
	}
	body.More = moreGroups("quarantine", s, found)
	if body.Total, err = c.quarantine.Count(r.Context(), s.poison()); err != nil {
		return err
	}
	if s.Group != "" && len(found) == 0 { // a note may be left for the next failure
		found = append(found, operate.Group{Fingerprint: s.Group})
	}
	if body.Groups, err = c.quarantineGroups(r.Context(), s.poison(), found, body.Total); err != nil {
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
	if body.Entries, err = c.quarantine.List(r.Context(), list); err != nil {
		return err
	}
	if len(body.Entries) == rows {
		body.Next = nextPage("quarantine", s, body.Entries[rows-1].ID)
	}
	waiting := s.poison()
	waiting.AfterID, waiting.Limit = 0, 10
	if body.Waiting, err = c.quarantine.Replayed(r.Context(), waiting); err != nil {
		return err
	}
	return c.show(w, r, page{Title: "Quarantine", Template: "quarantine", Section: "quarantine", Body: body})
}

// entryPage is one entry.
type entryPage struct {
	Entry       poison.Entry
	Note        poison.Note // on the failure group
	Content     content
	Quarantined bool
	May         buttons
}

// quarantined is poison.Entry.State of an entry that can be replayed, edited and
// discarded.
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

// idOf returns the ID in the query of a page about one message.
func idOf(r *http.Request) (int64, error) {
	text := r.URL.Query().Get("id")
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, inputError{fmt.Errorf("id %q is not a positive number", text)}
	}
	return id, nil
}
