package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/status"
)

const (
	// liveSeconds is the number of seconds after which a page loads new values.
	liveSeconds = 5

	// An overview is read again after overviewAge, because many people may look, and after
	// overviewShare times as long as the last reading took, for a slow database.
	overviewAge   = 2 * time.Second
	overviewShare = 25

	// lateAfter is how long a message may be due before it needs attention.
	lateAfter = time.Minute
)

// The number of rows that are read for an overview is limited.
type overview struct {
	At         time.Time
	Attention  []attention
	Outbox     status.Count
	Topics     []outbox.Topic
	Pending    outbox.Topic  // sums over Topics
	Partly     bool          // whether Topics and Pending include only the first rows of the outbox
	Oldest     time.Duration // longest time for which a waiting message has been due
	OldestFree time.Duration // the same, without messages that wait for a dead letter

	DeadKeys      []status.DeadKey // the first ordering keys that dead letters block
	BlockedByDead status.Count     // number of all these keys

	Forwarders int
	FreeSlots  int
	Consumers  []consumerRow
	Parked     parkedSums
	Dead       status.Count
	DeadGroups []operate.Group // empty if there are too many letters
	Entries    status.Count
	Groups     []operate.Group
	Latest     bool             // whether the counts in Groups include only the latest entries
	Replays    []operate.Replay // replays that are running or can be resumed
	Running    int
	In, Out    string // messages that enter and leave the outbox per second, or ""
	Handled    string // messages that all consumers handle per second

	rates [3]float64 // In, Out and Handled as numbers, for the chart

	Waiting, Rates, Days string `api:"-"` // charts, as JSON
}

type consumerRow struct {
	parked.Consumer

	Handled string // messages handled per second, or ""
}

// parkedSums contains sums over all consumers.
type parkedSums struct {
	Waiting, Held, Running int
	More                   bool // whether a count stopped at its limit
	Lag                    time.Duration
}

type attention struct {
	Urgent      bool
	What, Why   string
	Link, Label string
}

func (c *Console) getOverview(w http.ResponseWriter, r *http.Request) error {
	o, err := c.readOverview(r.Context())
	if err != nil {
		return err
	}
	c.sampler.watch() // after the overview was read, because watch may start to count the days, which would delay the reading
	o.Days = c.days.chart()
	return c.show(w, r, page{Title: "Overview", Template: "overview", Section: "overview", Live: liveSeconds, Charts: true, Body: o})
}

// The state may be a few seconds old. Only one viewer at a time reads the tables.
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

// groupedEntries limits the latest entries that the overview reads to find failure groups.
const groupedEntries = 1000

func (c *Console) newOverview(ctx context.Context) (o overview, err error) {
	o.At = time.Now()
	s, err := c.status.Read(ctx)
	if err != nil {
		return o, err
	}
	o.Outbox, o.Oldest, o.Dead, o.Entries = s.Outbox.Pending, s.Outbox.Oldest, s.Dead, s.Quarantine
	o.OldestFree, o.DeadKeys, o.BlockedByDead = s.Outbox.OldestFree, s.Outbox.DeadKeys, s.Outbox.BlockedByDead
	o.Forwarders, o.FreeSlots = len(s.Forwarders), s.FreeSlots
	backlog, err := c.outbox.Backlog(ctx, operate.Filter{})
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

func (c *Console) readFailures(ctx context.Context, o *overview, latest []status.Failure) error {
	if o.Dead.N > 0 && o.Dead.N <= groupedEntries {
		page, err := c.letters.Groups(ctx, operate.Filter{})
		if err != nil {
			return err
		}
		o.DeadGroups = page.Groups
	}
	switch o.Latest = o.Entries.N > groupedEntries; {
	case o.Latest:
		for _, f := range latest {
			group := operate.Group{
				Fingerprint: f.Fingerprint, Count: f.Count, Consumers: []string{f.Consumer}, Reason: f.Reason, ErrorType: f.ErrorType,
				LastFailedAt: f.LastFailedAt,
			}
			entries, err := c.quarantine.List(ctx, operate.Filter{Fingerprint: f.Fingerprint, Limit: 1})
			if err != nil {
				return err
			}
			for _, e := range entries.Rows {
				group.Error = e.Error
			}
			o.Groups = append(o.Groups, group)
		}
	case o.Entries.N > 0:
		page, err := c.quarantine.Groups(ctx, operate.Filter{})
		if err != nil {
			return err
		}
		o.Groups = page.Groups
	}
	largestFirst(o.DeadGroups)
	largestFirst(o.Groups)
	return nil
}

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
		o.Parked.More = o.Parked.More || max(one.Waiting, one.Held) >= one.CountLimit
		o.Parked.Lag = max(o.Parked.Lag, one.Lag)
		if one.Running {
			o.Parked.Running++
		}
	}
	return err
}

func (c *Console) openReplays(ctx context.Context, o *overview) error {
	latest, err := c.quarantine.Replays(ctx, 0)
	for _, r := range latest {
		if r.State != operate.ReplayFinished {
			o.Replays = append(o.Replays, r)
		}
		if r.State == operate.ReplayRunning {
			o.Running++
		}
	}
	return err
}

func largestFirst(groups []operate.Group) {
	slices.SortStableFunc(groups, func(a, b operate.Group) int { return cmp.Compare(b.Count, a.Count) })
}

// shownGroups is the maximum number of failure groups that the overview names.
const shownGroups = 5

// judge adds what does not move, and what needs a person's decision, the urgent first.
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

func (o *overview) judgeMoving(add func(urgent bool, what, why, url, label string)) {
	atLeast := ""
	if o.Partly {
		atLeast = "at least "
	}
	for _, k := range o.DeadKeys {
		what := upper(k.String())
		if o.Oldest >= lateAfter && o.OldestFree < lateAfter {
			what += ", and a message has waited for " + age(o.Oldest)
		}
		add(true, what, "Later messages of the key wait until you replay or discard the letter, or release the key.",
			link("letter", "id", fmt.Sprint(k.Letter)), "See the dead letter")
	}
	if n := o.BlockedByDead.N; n > len(o.DeadKeys) {
		add(true, upto(o.BlockedByDead)+" ordering keys are blocked by dead letters",
			"Only the first are named here.", "dead", "See the dead letters")
	}
	if o.OldestFree >= lateAfter {
		add(true, "The outbox is stuck: a message has been due for "+age(o.OldestFree),
			"Does a forwarder run, and can it reach the broker?", link("outbox", "state", outbox.Due), "See the messages")
	}
	if o.Pending.Due > 0 && o.FreeSlots > 0 {
		what := "No forwarder runs, and " + atLeast + plural(o.Pending.Due, "message is due", "messages are due")
		if o.Forwarders > 0 {
			what = plural(o.FreeSlots, "slot of the outbox has", "slots of the outbox have") + " no forwarder"
		}
		add(true, what, "Messages in a free slot are not sent. If a forwarder has just stopped, another one takes its slots within seconds.",
			"forwarders", "See the forwarders")
	}
	for _, one := range o.Consumers {
		if n := one.Waiting + one.Held; n > 0 && !one.Running {
			more := ""
			if max(one.Waiting, one.Held) >= one.CountLimit {
				more = "at least "
			}
			add(true, one.Name+" does not run, and "+more+plural(n, "message waits", "messages wait")+" for it",
				"No process subscribes to "+one.Topic+" for this consumer.",
				link("parked", "consumer", one.Name, "topic", one.Topic), "See the messages")
		}
	}
	if o.Pending.BackingOff > 0 {
		add(o.Pending.BackingOff > 100, upper(atLeast+plural(o.Pending.BackingOff, "message backs off", "messages back off")),
			"Refused by the broker. The forwarder tries again by itself.", link("outbox", "state", outbox.BackingOff), "See why")
	}
	if o.Pending.Blocked > 0 {
		add(true, upper(atLeast+plural(o.Pending.Blocked, "message waits", "messages wait"))+" for an earlier message of the same ordering key",
			"They are sent after the earlier message was sent, cancelled or discarded, or its key was released.",
			link("outbox", "state", outbox.Blocked), "See the keys")
	}
}

func (o *overview) judgeFailed(add func(urgent bool, what, why, url, label string)) {
	for _, r := range o.Replays {
		if r.State != operate.ReplayRunning {
			why := r.StopReason
			if why == "" {
				why = "It can be resumed."
			}
			what := fmt.Sprintf("Replay %d is %s, and %s left", r.ID, r.State, plural(max(0, r.Total-r.Changed), "message is", "messages are"))
			add(false, what, why, link("replay", "id", r.ID), "See the replay")
		}
	}
	for _, g := range o.Groups[:min(len(o.Groups), shownGroups)] {
		atLeast := ""
		if o.Latest {
			atLeast = "at least "
		}
		add(false, fmt.Sprintf("%s gave up on %s%s", first(g.Consumers, "A consumer"), atLeast, plural(g.Count, "message", "messages")),
			g.Error, link("quarantine", "group", g.Fingerprint), "See the failure")
	}
	for _, g := range o.DeadGroups[:min(len(o.DeadGroups), shownGroups)] {
		add(false, fmt.Sprintf("The forwarder gave up on %s to %s", plural(g.Count, "message", "messages"), first(g.Topics, "a topic")),
			g.Error, link("dead", "group", g.Fingerprint), "See the dead letters")
	}
	if len(o.DeadGroups) == 0 && o.Dead.N > 0 {
		add(false, "The forwarder gave up on "+upto(o.Dead)+" messages", "The page groups them by cause.", "dead", "See the dead letters")
	}
}

// first names one, and how many others there are.
func first(names []string, ifEmpty string) string {
	switch len(names) {
	case 0:
		return ifEmpty
	case 1:
		return names[0]
	}
	return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
}
