package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/watermill-once/once/operate/audit"
)

type auditPage struct {
	Filter  selection
	Actor   string
	Action  string
	Replay  string
	Records []auditRecord
	Next    string
}

// Link is the page of the changed row, or "".
type auditRecord struct {
	audit.Record

	Link string
}

func (p auditPage) Filtered() bool {
	return p.Filter.Filtered() || p.Actor != "" || p.Action != "" || p.Replay != ""
}

func (c *Console) getAudit(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	s, err := newSelection(query)
	if err == nil {
		err = s.check(filters["audit"], nil, nil)
	}
	if err != nil {
		return err
	}
	body := auditPage{Filter: s}
	for name, to := range map[string]*string{"actor": &body.Actor, "action": &body.Action, "replay": &body.Replay} {
		if *to, err = formValue(query, name); err != nil {
			return err
		}
	}
	f := audit.Filter{
		Actor: body.Actor, Action: body.Action, Consumer: s.Consumer, MessageID: s.Message, After: s.After, Before: s.Before,
		BeforeID: s.AfterID, Limit: rows,
	}
	if body.Replay != "" {
		if f.ReplayID, err = strconv.ParseInt(body.Replay, 10, 64); err != nil || f.ReplayID <= 0 {
			return inputError{fmt.Errorf("replay %q is not a positive number", body.Replay)}
		}
	}
	list, err := c.audit.List(r.Context(), f)
	if err != nil {
		return err
	}
	for _, record := range list.Rows {
		body.Records = append(body.Records, auditRecord{record, subjectPage(record.Subject)})
	}
	if list.Next > 0 {
		body.Next = body.next(list.Next)
	}
	return c.show(w, r, page{Title: "Audit log", Template: "audit", Section: "audit", Body: body})
}

func (p auditPage) next(before int64) string {
	query := p.Filter.values()
	for name, value := range map[string]string{"actor": p.Actor, "action": p.Action, "replay": p.Replay} {
		if value != "" {
			query.Set(name, value)
		}
	}
	query.Set("after", fmt.Sprint(before))
	return "audit?" + query.Encode()
}

// subjectPage returns the page of a changed row, which may be gone, or "".
func subjectPage(subject string) string {
	pages := map[string]string{"parked": "parked-message", "dead": "letter", "sent": "copy", "outbox": "message", "replay": "replay"}
	table, id, _ := strings.Cut(subject, ":")
	if table == "group" {
		return link("quarantine", "group", id)
	}
	if name, ok := pages[table]; ok {
		return name + "?" + url.Values{"id": {id}}.Encode()
	}
	return ""
}
