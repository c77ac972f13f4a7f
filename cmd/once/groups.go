package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/quarantine"
)

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

type groupsJSON struct {
	Groups  []groupJSON `json:"groups"`
	Partial bool        `json:"partial,omitempty"` // only the latest messages were searched
	Next    string      `json:"next,omitempty"`    // --after of the next page
}

func notSearched(partial bool) string {
	if !partial {
		return ""
	}
	return "\nOnly the latest messages were searched, so groups may be missing. The list command with the same flags searches all.\n"
}

type countJSON struct {
	Count int `json:"count"`
}

func groupTable(width int, groups []groupJSON) string {
	var head []string
	var rows [][]string
	for _, g := range largestFirst(groups) {
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
			head = []string{"GROUP", "COUNT", "TOPIC", "LAST (UTC)", "REASON", "ERROR"}
			rows = append(rows, []string{g.Group, count, topics, at(g.LastFailedAt), g.Reason, g.Error})
		}
	}
	return table(width, head, rows)
}

func largestGroups(width int, groups []groupJSON) string {
	const most = 20
	groups = largestFirst(groups)
	shown := groups[:min(len(groups), most)]
	text := groupTable(width, shown)
	if rest := groups[len(shown):]; len(rest) > 0 {
		n := 0
		for _, g := range rest {
			n += g.Count
		}
		text += fmt.Sprintf("\nand %s with %s: add --json to see all\n",
			counted(len(rest), "smaller group", "smaller groups"), counted(n, "message", "messages"))
	}
	return text
}

func largestFirst(groups []groupJSON) []groupJSON {
	return slices.SortedStableFunc(slices.Values(groups), func(a, b groupJSON) int { return cmp.Compare(b.Count, a.Count) })
}

// printGroups prints groups, or none. After a full page it says how to continue.
func (a *app) printGroups(out groupsJSON, limit int, none string) error {
	if len(out.Groups) == 0 {
		return a.print(out, none+"\n"+notSearched(out.Partial))
	}
	text := groupTable(a.width, out.Groups) + notSearched(out.Partial)
	if n := len(out.Groups); n == limit {
		out.Next = out.Groups[n-1].Group
		text += "\nThere may be more: add --after " + out.Next + "\n"
	}
	return a.print(out, text)
}

func groupsOf(groups []operate.Group) []groupJSON {
	all := []groupJSON{}
	for _, g := range groups {
		all = append(all, groupJSON{
			Group: g.Fingerprint, Count: g.Count, More: g.More, Consumers: g.Consumers, Topics: g.Topics, Reason: g.Reason,
			ErrorType: g.ErrorType, Error: g.Error, FirstFailedAt: g.FirstFailedAt, LastFailedAt: g.LastFailedAt, Skipped: g.Skipped,
		})
	}
	return all
}

// none is the output if no message matches.
func groupsCommand[T any](
	a *app, short, none string, addFilter func(*cobra.Command, *operate.Filter),
	open func(*sql.DB, operate.Config) (T, error), groups func(T, context.Context, operate.Filter) (operate.GroupPage, error),
) *cobra.Command {
	filter := operate.Filter{Limit: 100}
	cmd := &cobra.Command{
		Use:   "groups",
		Short: short,
		Args:  noArgs,
		RunE: with(a, open, nil, func(ctx context.Context, t T, _ []string) error {
			page, err := groups(t, ctx, filter)
			if err != nil {
				return err
			}
			return a.printGroups(groupsJSON{Groups: groupsOf(page.Groups), Partial: page.Partial}, filter.Limit, none)
		}),
	}
	addFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of groups")
	cmd.Flags().StringVar(&filter.AfterGroup, "after", "", "begin after this group")
	return cmd
}

func countCommand[T any](
	a *app, short string, addFilter func(*cobra.Command, *operate.Filter),
	open func(*sql.DB, operate.Config) (T, error), count func(T, context.Context, operate.Filter) (operate.Count, error),
) *cobra.Command {
	var filter operate.Filter
	cmd := &cobra.Command{
		Use:   "count",
		Short: short,
		Args:  noArgs,
		RunE: with(a, open, nil, func(ctx context.Context, t T, _ []string) error {
			n, err := countAll(ctx, filter, func(ctx context.Context, f operate.Filter) (operate.Count, error) { return count(t, ctx, f) })
			if err != nil {
				return err
			}
			return a.print(countJSON{n}, fmt.Sprintln(n))
		}),
	}
	addFilter(cmd, &filter)
	return cmd
}

func (a *app) deadGroupsCommand() *cobra.Command {
	return groupsCommand(a, "List the groups of dead letters with one cause", "No dead letter matches.",
		addDeadFilter, dead.New, (*dead.Letters).Groups)
}

func (a *app) deadCountCommand() *cobra.Command {
	return countCommand(a, "Count dead letters", addDeadFilter, dead.New, (*dead.Letters).Count)
}

func (a *app) quarantineGroupsCommand() *cobra.Command {
	return groupsCommand(a, "List the failure groups: entries with one cause", "No message in quarantine matches.",
		addQuarantineFilter, quarantine.New, (*quarantine.Entries).Groups)
}

func (a *app) quarantineCountCommand() *cobra.Command {
	return countCommand(a, "Count entries", addQuarantineFilter, quarantine.New, (*quarantine.Entries).Count)
}

// with is for a command of one operators' package, whose New is open. config may be nil.
func with[T any](
	a *app, open func(*sql.DB, operate.Config) (T, error), config *operate.Config,
	work func(ctx context.Context, t T, args []string) error,
) func(*cobra.Command, []string) error {
	if config == nil {
		config = &operate.Config{}
	}
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		config.Schema, config.WithoutContent = db.tables, db.withoutContent
		t, err := open(db.DB, *config)
		if err != nil {
			return err
		}
		return work(ctx, t, args)
	})
}

// countAll counts at most f.Limit messages.
func countAll(
	ctx context.Context, f operate.Filter, count func(context.Context, operate.Filter) (operate.Count, error),
) (n int, err error) {
	limit := f.Limit
	for more := true; more; more = f.AfterID > 0 && (limit == 0 || n < limit) {
		part, err := count(ctx, f)
		if err != nil {
			return 0, err
		}
		n, f.AfterID = n+part.N, part.Next
	}
	if limit > 0 {
		n = min(n, limit)
	}
	return n, nil
}

// eachRow returns the ID after which more rows than f.Limit may follow, or 0.
func eachRow[Row any](
	ctx context.Context, f operate.Filter, after int, list func(context.Context, operate.Filter) (operate.Page[Row], error), each func(*Row),
) (next int64, err error) {
	f.AfterID = int64(after)
	for more := true; more && f.Limit > 0; more = next > 0 {
		page, err := list(ctx, f)
		if err != nil {
			return 0, err
		}
		for i := range page.Rows {
			each(&page.Rows[i])
		}
		next, f.AfterID, f.Limit = page.Next, page.Next, f.Limit-len(page.Rows)
	}
	return next, nil
}

func (a *app) printList(out any, next int64, head []string, rows [][]string, none string) error {
	if len(rows) == 0 {
		return a.print(out, none+"\n")
	}
	return a.print(out, table(a.width, head, rows)+more(next))
}

func more(next int64) string {
	if next == 0 {
		return ""
	}
	return fmt.Sprintf("\nThere may be more: add --after %d\n", next)
}
