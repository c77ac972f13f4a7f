package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
)

const (
	// liveSeconds is how often a page loads new values.
	liveSeconds = 3

	// overviewAge is how long an overview is used again: many people may look, and
	// counting takes time in proportion to the rows.
	overviewAge = 2 * time.Second

	// lateAfter is the age of a due message from which somebody should look.
	lateAfter = time.Minute
)

// overview is the state of all tables at a time.
type overview struct {
	At         time.Time
	Attention  []attention
	Topics     []pending.Topic
	Pending    pending.Topic // the sums
	Partly     bool          // the outbox has more rows than were counted
	Oldest     time.Duration // of the messages that are due
	Forwarders int
	FreeSlots  int
	Consumers  []parked.Consumer
	Parked     parkedSums
	Dead       int
	DeadGroups []operate.Group
	Entries    int
	Groups     []operate.Group
	Replays    []poison.Replay // that run, or can be resumed
	Running    int
	Chart      string
}

// parkedSums are sums over all consumers.
type parkedSums struct {
	Waiting, Held, Running int
	More                   bool // a count stopped at its limit
	Lag                    time.Duration
}

// attention is something that a person should look at.
type attention struct {
	Urgent      bool
	What, Why   string
	Link, Label string
}

func (c *Console) getOverview(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
	o, err := c.readOverview(r.Context())
	if err != nil {
		return err
	}
	return c.show(w, r, page{Title: "Overview", Template: "overview", Section: "overview", Live: liveSeconds, Charts: true, Body: o})
}

// readOverview returns the state of the tables, at most overviewAge old. The lock also
// keeps many viewers from counting at the same time.
func (c *Console) readOverview(ctx context.Context) (overview, error) {
	c.overview.Lock()
	defer c.overview.Unlock()
	if time.Since(c.overview.latest.At) < overviewAge {
		return c.overview.latest, nil
	}
	o, err := c.newOverview(ctx)
	if err != nil {
		return overview{}, err
	}
	c.overview.history.add(o.At, o.Pending.Pending, o.Dead, o.Entries)
	o.Chart = c.overview.history.chart("Outbox", "Dead letters", "Quarantine")
	c.overview.latest = o
	return o, nil
}

func (c *Console) newOverview(ctx context.Context) (o overview, err error) {
	o.At = time.Now()
	backlog, err := c.outbox.Backlog(ctx, pending.Filter{})
	if err != nil {
		return o, err
	}
	o.Topics, o.Partly = backlog.Topics, backlog.Next > 0
	for _, t := range o.Topics {
		o.Pending.Pending += t.Pending
		o.Pending.Due += t.Due
		o.Pending.BackingOff += t.BackingOff
		o.Pending.Delayed += t.Delayed
		o.Pending.Blocked += t.Blocked
	}
	if o.Pending.Due > 0 {
		first, err := c.outbox.List(ctx, pending.Filter{State: pending.Due, Limit: 1})
		if err != nil {
			return o, err
		}
		for _, m := range first.Messages {
			since := m.CreatedAt
			if m.DueAt.After(since) {
				since = m.DueAt
			}
			o.Oldest = max(0, o.At.Sub(since))
		}
	}
	if err = c.readRunning(ctx, &o); err != nil {
		return o, err
	}
	if o.Dead, err = c.letters.Count(ctx, deadletter.Filter{}); err != nil {
		return o, err
	}
	if o.DeadGroups, err = c.letters.Groups(ctx, deadletter.Filter{}); err != nil {
		return o, err
	}
	if o.Entries, err = c.quarantine.Count(ctx, poison.Filter{}); err != nil {
		return o, err
	}
	if o.Groups, err = c.quarantine.Groups(ctx, poison.Filter{}); err != nil {
		return o, err
	}
	if err = c.openReplays(ctx, &o); err != nil {
		return o, err
	}
	largestFirst(o.DeadGroups)
	largestFirst(o.Groups)
	o.judge()
	return o, nil
}

// readRunning adds the forwarders and the consumers.
func (c *Console) readRunning(ctx context.Context, o *overview) error {
	slots, err := c.status.Slots(ctx)
	if err != nil {
		return err
	}
	owners := map[string]bool{}
	for _, s := range slots {
		if s.Owner == "" {
			o.FreeSlots++
		} else {
			owners[s.Owner] = true
		}
	}
	o.Forwarders = len(owners)
	o.Consumers, err = c.parked.Consumers(ctx)
	for _, one := range o.Consumers {
		o.Parked.Waiting += one.Waiting
		o.Parked.Held += one.Held
		o.Parked.More = o.Parked.More || max(one.Waiting, one.Held) >= parked.CountLimit
		o.Parked.Lag = max(o.Parked.Lag, one.Lag)
		if one.Running {
			o.Parked.Running++
		}
	}
	return err
}

// openReplays adds the replays that have not finished, of the latest ones.
func (c *Console) openReplays(ctx context.Context, o *overview) error {
	latest, err := c.quarantine.Replays(ctx, 0)
	for _, r := range latest {
		if r.State != poison.ReplayFinished {
			o.Replays = append(o.Replays, r)
		}
		if r.State == poison.ReplayRunning {
			o.Running++
		}
	}
	return err
}

func largestFirst(groups []operate.Group) {
	slices.SortStableFunc(groups, func(a, b operate.Group) int { return cmp.Compare(b.Count, a.Count) })
}

// shownGroups is how many failure groups the overview names.
const shownGroups = 5

// judge lists what needs a person, the most urgent first: messages that do not move,
// then messages that somebody has to decide about.
func (o *overview) judge() {
	add := func(urgent bool, what, why, url, label string) {
		o.Attention = append(o.Attention, attention{urgent, what, why, url, label})
	}
	if o.Oldest >= lateAfter {
		add(true, "The outbox does not move: a message has been due for "+age(o.Oldest),
			"Does a forwarder run, and can it reach the broker?", link("outbox", "state", pending.Due), "See the messages")
	}
	if o.Pending.Due > 0 && o.FreeSlots > 0 {
		what := "No forwarder runs, and " + plural(o.Pending.Due, "message is due", "messages are due")
		if o.Forwarders > 0 {
			what = plural(o.FreeSlots, "slot of the outbox has", "slots of the outbox have") + " no forwarder"
		}
		add(true, what, "Messages of a slot without a forwarder are not sent. After a forwarder has stopped, others take its slots in seconds.",
			"forwarders", "See the forwarders")
	}
	for _, one := range o.Consumers {
		if n := one.Waiting + one.Held; n > 0 && !one.Running {
			more := ""
			if max(one.Waiting, one.Held) >= parked.CountLimit {
				more = "at least "
			}
			add(true, one.Name+" does not run, and "+more+plural(n, "message waits", "messages wait")+" for it",
				"No process subscribes to "+one.Topic+" for this consumer.",
				link("parked", "consumer", one.Name, "topic", one.Topic), "See the messages")
		}
	}
	if o.Pending.BackingOff > 0 {
		add(o.Pending.BackingOff > 100, plural(o.Pending.BackingOff, "message backs off", "messages back off"),
			"The broker refused. The forwarder tries again by itself.", link("outbox", "state", pending.BackingOff), "See why")
	}
	if o.Pending.Blocked > 0 {
		add(true, plural(o.Pending.Blocked, "message waits", "messages wait")+" for another one of the same ordering key",
			"The key goes on when that message is sent, cancelled, discarded or released.", link("outbox", "state", pending.Blocked), "See the keys")
	}
	for _, r := range o.Replays {
		if r.State != poison.ReplayRunning {
			why := r.StopReason
			if why == "" {
				why = "It can be resumed."
			}
			what := fmt.Sprintf("Replay %d is %s, with %s to go", r.ID, r.State, count(max(0, r.Total-r.Replayed)))
			add(false, what, why, link("replay", "id", r.ID), "Open it")
		}
	}
	for _, g := range o.Groups[:min(len(o.Groups), shownGroups)] {
		add(false, fmt.Sprintf("%s gave up on %s", first(g.Consumers, "A consumer"), plural(g.Count, "message", "messages")),
			g.Error, link("quarantine", "group", g.Fingerprint), "Look at the failure")
	}
	for _, g := range o.DeadGroups[:min(len(o.DeadGroups), shownGroups)] {
		add(false, fmt.Sprintf("The forwarder gave up on %s to %s", plural(g.Count, "message", "messages"), first(g.Topics, "a topic")),
			g.Error, link("dead", "group", g.Fingerprint), "Look at the letters")
	}
	slices.SortStableFunc(o.Attention, func(a, b attention) int {
		switch {
		case a.Urgent == b.Urgent:
			return 0
		case a.Urgent:
			return -1
		}
		return 1
	})
}

// first returns the first name with the number of others.
func first(names []string, none string) string {
	switch len(names) {
	case 0:
		return none
	case 1:
		return names[0]
	}
	return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
}
