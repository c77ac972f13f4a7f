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
	"github.com/watermill-once/once/status"
)

const (
	// liveSeconds is how often a page loads new values.
	liveSeconds = 3

	// overviewAge is how long an overview is used again: many people may look. It is
	// longer if the database is slow: reading overviews takes at most the part of the time
	// that overviewShare names.
	overviewAge   = 2 * time.Second
	overviewShare = 25

	// lateAfter is the age of a due message from which somebody should look.
	lateAfter = time.Minute
)

// overview is the state of all tables at a time. It reads a bounded number of rows.
type overview struct {
	At         time.Time
	Attention  []attention
	Outbox     status.Count
	Topics     []pending.Topic
	Pending    pending.Topic // the sums
	Partly     bool          // Topics and Pending are those of the first rows only
	Oldest     time.Duration // of the messages that are due
	Forwarders int
	FreeSlots  int
	Consumers  []consumerRow
	Parked     parkedSums
	Dead       status.Count
	DeadGroups []operate.Group // none if there are too many letters
	Entries    status.Count
	Groups     []operate.Group
	Latest     bool            // Groups are those of the latest entries, and not all
	Replays    []poison.Replay // that run, or can be resumed
	Running    int
	In, Out    string // messages a second that are written to the outbox and leave it, or ""
	Handled    string // messages a second of all consumers

	rates [3]float64 // the same for the chart

	Waiting, Rates, Days string // charts
}

// consumerRow is a consumer with its rate.
type consumerRow struct {
	parked.Consumer

	Handled string // messages a second, or ""
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
	c.sampler.watch() // now, because it counts the days, which would delay this page
	o.Days = c.days.chart()
	return c.show(w, r, page{Title: "Overview", Template: "overview", Section: "overview", Live: liveSeconds, Charts: true, Body: o})
}

// readOverview returns the state of the tables, a few seconds old. The lock also keeps many
// viewers from counting at the same time.
func (c *Console) readOverview(ctx context.Context) (overview, error) {
	c.overview.Lock()
	defer c.overview.Unlock()
	if time.Now().Before(c.overview.until) {
		return c.overview.latest, nil
	}
	o, err := c.newOverview(ctx)
	if err != nil {
		return overview{}, err
	}
	c.overview.until = time.Now().Add(max(overviewAge, overviewShare*time.Since(o.At)))
	h := &c.overview.history
	h.add(&o)
	o.Waiting, o.Rates = h.waiting.chart("Outbox", "Dead letters", "Quarantine"), h.rates.chart("Written", "Sent", "Handled")
	c.overview.latest = o
	return o, nil
}

// groupedEntries is the number of messages up to which the overview groups all of them.
// Above it, the latest 1,000 entries of the quarantine are grouped.
const groupedEntries = 1000

func (c *Console) newOverview(ctx context.Context) (o overview, err error) {
	o.At = time.Now()
	s, err := c.status.Read(ctx)
	if err != nil {
		return o, err
	}
	o.Outbox, o.Oldest, o.Dead, o.Entries = s.Outbox.Pending, s.Outbox.Oldest, s.Dead, s.Quarantine
	o.Forwarders, o.FreeSlots = len(s.Forwarders), s.FreeSlots
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
	if err = c.readConsumers(ctx, &o); err != nil {
		return o, err
	}
	if err = c.readFailures(ctx, &o, s.Failures); err != nil {
		return o, err
	}
	if err = c.openReplays(ctx, &o); err != nil {
		return o, err
	}
	o.judge()
	return o, nil
}

// readFailures adds the failure groups.
func (c *Console) readFailures(ctx context.Context, o *overview, latest []status.Failure) (err error) {
	if o.Dead.N > 0 && o.Dead.N <= groupedEntries {
		if o.DeadGroups, err = c.letters.Groups(ctx, deadletter.Filter{}); err != nil {
			return err
		}
	}
	switch o.Latest = o.Entries.N > groupedEntries; {
	case o.Latest:
		for _, f := range latest {
			group := operate.Group{
				Fingerprint: f.Fingerprint, Count: f.Count, Consumers: []string{f.Consumer}, Reason: f.Reason, ErrorType: f.ErrorType,
				LastFailedAt: f.LastFailedAt,
			}
			entries, err := c.quarantine.List(ctx, poison.Filter{Fingerprint: f.Fingerprint, Limit: 1})
			if err != nil {
				return err
			}
			for _, e := range entries {
				group.Error = e.Error
			}
			o.Groups = append(o.Groups, group)
		}
	case o.Entries.N > 0:
		if o.Groups, err = c.quarantine.Groups(ctx, poison.Filter{}); err != nil {
			return err
		}
	}
	largestFirst(o.DeadGroups)
	largestFirst(o.Groups)
	return nil
}

// readConsumers adds the consumers, and how many messages move.
func (c *Console) readConsumers(ctx context.Context, o *overview) error {
	flow, err := c.status.Flow(ctx)
	if err != nil {
		return err
	}
	rates := map[string]float64{}
	total := 0.0
	for _, h := range flow.Handled {
		rates[h.Consumer] = h.PerSecond
		total += h.PerSecond
	}
	o.Handled = perSecond(total)
	in, out, known := c.overview.flow.add(flow)
	if known {
		o.In, o.Out = perSecond(in), perSecond(out)
	}
	o.rates = [3]float64{in, out, total}
	consumers, err := c.parked.Consumers(ctx)
	for _, one := range consumers {
		row := consumerRow{Consumer: one}
		if rate, ok := rates[one.Name]; ok {
			row.Handled = perSecond(rate)
		}
		o.Consumers = append(o.Consumers, row)
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
	o.judgeMoving(add)
	o.judgeFailed(add)
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

// judgeMoving adds messages that do not move.
func (o *overview) judgeMoving(add func(urgent bool, what, why, url, label string)) {
	atLeast := ""
	if o.Partly {
		atLeast = "at least "
	}
	if o.Oldest >= lateAfter {
		add(true, "The outbox does not move: a message has been due for "+age(o.Oldest),
			"Does a forwarder run, and can it reach the broker?", link("outbox", "state", pending.Due), "See the messages")
	}
	if o.Pending.Due > 0 && o.FreeSlots > 0 {
		what := "No forwarder runs, and " + atLeast + plural(o.Pending.Due, "message is due", "messages are due")
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
		add(o.Pending.BackingOff > 100, upper(atLeast+plural(o.Pending.BackingOff, "message backs off", "messages back off")),
			"The broker refused. The forwarder tries again by itself.", link("outbox", "state", pending.BackingOff), "See why")
	}
	if o.Pending.Blocked > 0 {
		add(true, upper(atLeast+plural(o.Pending.Blocked, "message waits", "messages wait"))+" for another one of the same ordering key",
			"The key goes on when that message is sent, cancelled, discarded or released.", link("outbox", "state", pending.Blocked), "See the keys")
	}
}

// judgeFailed adds replays that can be resumed, and messages that were given up.
func (o *overview) judgeFailed(add func(urgent bool, what, why, url, label string)) {
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
		atLeast := ""
		if o.Latest {
			atLeast = "at least "
		}
		add(false, fmt.Sprintf("%s gave up on %s%s", first(g.Consumers, "A consumer"), atLeast, plural(g.Count, "message", "messages")),
			g.Error, link("quarantine", "group", g.Fingerprint), "Look at the failure")
	}
	for _, g := range o.DeadGroups[:min(len(o.DeadGroups), shownGroups)] {
		add(false, fmt.Sprintf("The forwarder gave up on %s to %s", plural(g.Count, "message", "messages"), first(g.Topics, "a topic")),
			g.Error, link("dead", "group", g.Fingerprint), "Look at the letters")
	}
	if len(o.DeadGroups) == 0 && o.Dead.N > 0 {
		add(false, "The forwarder gave up on "+upto(o.Dead)+" messages", "The page groups them by their causes.", "dead", "Look at the letters")
	}
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
