package main

import (
	"fmt"
	"strings"

	"github.com/watermill-once/once/operate/reconcile"
)

const shownIDs = 20

// Differences are a foundError.
func (a *app) printReports(out reconcileJSON) error {
	var b strings.Builder
	found := false
	for i := range out.Reports {
		b.WriteString(a.reportText(&out.Reports[i]) + "\n")
		found = found || out.Reports[i].Found()
	}
	if err := a.print(out, b.String()); err != nil {
		return err
	}
	if found {
		return foundError{}
	}
	return nil
}

func (a *app) reportText(r *reconcile.Report) string {
	parked := []string{}
	for _, p := range r.Parked {
		parked = append(parked, fmt.Sprintf("%d %s since %s", p.N, p.State, at(p.Oldest)))
	}
	outstanding := func(o reconcile.Count) string {
		if o.N == 0 {
			return ""
		}
		return fmt.Sprintf("%d since %s", o.N, at(o.Oldest))
	}
	since, recently, keys := "", "", ""
	if len(r.Missing) > 0 {
		since = fmt.Sprintf(", the first was sent %s", at(r.MissingSince))
	}
	if r.SentRecently > 0 {
		recently = fmt.Sprintf("%s sent again recently and has not arrived yet", counted(r.SentRecently, "message was", "messages were"))
	}
	if r.BusinessKeys && len(r.Missing) > 0 {
		keys = "the consumer has business keys: a missing message may have been skipped as a duplicate"
	}
	text := fields(
		"consumer", r.Consumer, "topics", strings.Join(r.Topics, ", "), "compared (UTC)", at(r.From)+" to "+at(r.Until),
		"sent", fmt.Sprint(r.Sent), "known", fmt.Sprint(r.Known),
		"missing", fmt.Sprint(len(r.Missing))+since, "never sent", fmt.Sprint(len(r.Phantoms)),
		"parked", strings.Join(parked, "; "), "pending", outstanding(r.Pending), "dead letters", outstanding(r.Dead),
		"recent", recently, "note", keys,
	)
	return text + a.missingText(r.Missing) + a.phantomText(r.Phantoms)
}

func (a *app) missingText(all []reconcile.Missing) string {
	if len(all) == 0 {
		return ""
	}
	var rows [][]string
	for _, m := range all[:min(len(all), shownIDs)] {
		rows = append(rows, []string{fmt.Sprint(m.SentLogID), m.Topic, m.MessageID, at(m.SentAt)})
	}
	return "\nSent, and neither handled nor parked:\n" + table(a.width, []string{"ID", "TOPIC", "MESSAGE", "SENT (UTC)"}, rows) +
		andMore(len(all)) + "Send them again with: once sent replay ID...\n"
}

func (a *app) phantomText(all []reconcile.Phantom) string {
	if len(all) == 0 {
		return ""
	}
	var rows [][]string
	for _, p := range all[:min(len(all), shownIDs)] {
		where := ""
		switch {
		case p.Pending:
			where = "waits in the outbox"
		case p.Dead:
			where = "is a dead letter"
		}
		rows = append(rows, []string{p.MessageID, p.State, at(p.At), where})
	}
	return "\nHandled or parked, and never sent:\n" + table(a.width, []string{"MESSAGE", "STATE", "SINCE (UTC)", "AT THE SENDER"}, rows) +
		andMore(len(all))
}

func andMore(n int) string {
	if n <= shownIDs {
		return ""
	}
	return fmt.Sprintf("and %d more: --json shows all\n", n-shownIDs)
}
