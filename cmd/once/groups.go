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
	More          bool      `json:"more,omitempty"` // there are more than Count
	Consumers     []string  `json:"consumers,omitempty"`
	Topics        []string  `json:"topics"`
	Reason        string    `json:"reason,omitempty"`
	ErrorType     string    `json:"error_type,omitempty"`
	Error         string    `json:"error,omitempty"`
	FirstFailedAt time.Time `json:"first_failed_at,omitzero"`
	LastFailedAt  time.Time `json:"last_failed_at,omitzero"`
	FirstSentAt   time.Time `json:"first_sent_at,omitzero"`
	LastSentAt    time.Time `json:"last_sent_at,omitzero"`
	Skipped       []int64   `json:"skipped,omitempty"` // a replay needs --force for these
}

// groupsJSON is the output of the groups commands.
type groupsJSON struct {
	Groups []groupJSON `json:"groups"`
	Next   string      `json:"next,omitempty"` // --after of the next page
}

// countJSON is the output of the count commands.
type countJSON struct {
	Count int `json:"count"`
}

// groupTable renders failure groups, or the groups of sent messages.
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
