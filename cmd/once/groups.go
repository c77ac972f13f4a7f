package main

import (
	"fmt"
	"strings"
	"time"
)

// groupJSON is a failure group, or the sent messages of one topic.
type groupJSON struct {
	Group         string    `json:"group"`
	Count         int       `json:"count"`
	More          bool      `json:"more,omitempty"` // whether the group has more than Count messages
	Consumers     []string  `json:"consumers,omitempty"`
	Topics        []string  `json:"topics"`
	Reason        string    `json:"reason,omitempty"`
	ErrorType     string    `json:"error_type,omitempty"`
	Error         string    `json:"error,omitempty"`
	FirstFailedAt time.Time `json:"first_failed_at,omitzero"`
	LastFailedAt  time.Time `json:"last_failed_at,omitzero"`
	FirstSentAt   time.Time `json:"first_sent_at,omitzero"`
	LastSentAt    time.Time `json:"last_sent_at,omitzero"`
	Skipped       []int64   `json:"skipped,omitempty"` // IDs of messages that a replay skips without --force
}

// groupsJSON is the JSON output of the commands named "groups", such as "once dead
// groups".
type groupsJSON struct {
	Groups  []groupJSON `json:"groups"`
	Partial bool        `json:"partial,omitempty"` // only the latest messages were searched
	Next    string      `json:"next,omitempty"`    // --after of the next page
}

// notSearched returns the warning that only the latest messages were searched. If the
// parameter partial is false, it returns "".
func notSearched(partial bool) string {
	if !partial {
		return ""
	}
	return "\nOnly the latest messages were searched, so groups may be missing. The list command with the same flags searches all.\n"
}

// countJSON is the JSON output of the commands named "count", such as "once dead
// count".
type countJSON struct {
	Count int `json:"count"`
}

// groupTable returns failure groups, or the groups of sent messages, as a table.
func groupTable(width int, groups []groupJSON) string {
	head := []string{"COUNT", "TOPIC", "LAST (UTC)", "GROUP"}
	var rows [][]string
	for _, g := range groups {
		count, topics := fmt.Sprint(g.Count), strings.Join(g.Topics, " ")
		if g.More {
			count += "+"
		}
		switch {
		case len(g.Consumers) > 0:
			head = []string{"GROUP", "COUNT", "CONSUMER", "LAST (UTC)", "REASON", "ERROR"}
			rows = append(rows, []string{g.Group, count, strings.Join(g.Consumers, " "), at(g.LastFailedAt), g.Reason, g.Error})
		case !g.LastSentAt.IsZero():
			head = []string{"COUNT", "FIRST (UTC)", "LAST (UTC)", "TOPIC"}
			rows = append(rows, []string{count, at(g.FirstSentAt), at(g.LastSentAt), topics})
		default:
			rows = append(rows, []string{count, topics, at(g.LastFailedAt), g.Group})
		}
	}
	return table(width, head, rows)
}
