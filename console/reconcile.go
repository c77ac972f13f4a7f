package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/watermill-once/once/operate/reconcile"
)

type reconcilePage struct {
	Reports []reconcile.Kept
	Next    string
}

func (c *Console) getReconcile(w http.ResponseWriter, r *http.Request) error {
	var before int64
	if text := r.URL.Query().Get("before"); text != "" {
		var err error
		if before, err = strconv.ParseInt(text, 10, 64); err != nil || before < 0 {
			return inputError{fmt.Errorf("before %q is not a number", text)}
		}
	}
	list, err := c.archive.List(r.Context(), before)
	if err != nil {
		return err
	}
	body := reconcilePage{Reports: list}
	if n := len(list); n > 0 {
		older, err := c.archive.List(r.Context(), list[n-1].ID)
		if err != nil {
			return err
		}
		if len(older) > 0 {
			body.Next = link("reconcile", "before", list[n-1].ID)
		}
	}
	return c.show(w, r, page{Title: "Reconciliation", Template: "reconcile", Section: "reconcile", Body: body})
}

type reportPage struct {
	Kept   reconcile.Kept
	Resend string // URL of the page on which the missing messages can be sent again, or ""
}

func (c *Console) getReport(w http.ResponseWriter, r *http.Request) error {
	id, kept, err := named(r, c.archive.Get)
	if err != nil {
		return err
	}
	body := reportPage{Kept: kept}
	if missing := kept.Report.Missing; len(missing) > 0 && c.may(r, ReplaySent) {
		query := url.Values{"do": {"replay-sent"}}
		for _, m := range missing[:min(len(missing), mostIDs)] {
			query.Add("id", strconv.FormatInt(m.SentLogID, 10))
		}
		body.Resend = "change?" + query.Encode()
	}
	return c.show(w, r, page{Title: fmt.Sprintf("Report %d", id), Template: "report", Section: "reconcile", Body: body})
}
