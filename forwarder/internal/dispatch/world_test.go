package dispatch

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// world is a simple model of everything around a Scheduler: a database with concurrent
// transactions, a publisher, a broker, other instances and a clock. It runs the
// Scheduler's commands with random delays and failures. It records the first rule that
// is broken.
type world struct {
	rng     *rand.Rand
	now     time.Time
	events  eventHeap
	seq     int
	profile profile
	plant   plant // changes commands and events, to test the checks

	s          *Scheduler
	process    int // number of the process; a restart increases it
	wakeAt     time.Time
	owned      map[int64]bool // slots that this instance owns in the database
	granted    map[int64]bool // slots that the Scheduler may work on
	closed     bool           // Stop was called, and Drained or Expired was reported
	inFlight   map[int64]bool // positions of publishes without an outcome
	sent       []Publish      // publishes that were sent on the current channel and have no outcome
	done       map[int64]bool // positions that this process knows to be confirmed
	ever       map[int64]bool // positions that any process knew to be confirmed
	healed     bool           // failures have ended
	deaf       bool           // one topic does not answer although failures have ended
	steps      int
	foundAhead int // number of messages that lookaheads have returned

	table   map[int64]*stored
	dead    map[int64]bool
	stored  map[int64]bool // positions that the broker has stored
	refused map[int64]bool // positions that the broker has refused
	late    map[int64]bool // positions whose deletion was committed after the end of the process
	blocked map[string]*blockedKey
	pauses  Pauses
	heeds   bool // a sweep has seen these pauses
	changes int  // number of changes of the pauses

	lastPosition int64
	lastXID      int64
	open         map[int64]bool // ids of open transactions
	lastEnded    int64
	lingers      bool // a transaction is open although its connection was lost
	releasing    int
	commits      int
	closing      map[string]bool // topics that contain a message for which the broker closes the channel

	broken error
	logf   func(format string, args ...any) // may be nil
}

// profile says how the world behaves in one schedule.
type profile struct {
	failures  float64 // probability that database work fails
	refusals  float64
	unknown   float64
	outages   bool
	vague     bool // during an outage the outcome of a publish is unknown
	silent    bool // sometimes the broker does not answer for a topic
	keys      int
	explains  bool // the publisher's errors can say that a message was refused
	blockDead bool // a dead letter blocks its key
	bulk      bool // one tenant writes many rows together
	pauses    bool // an operator pauses topics and tenants
	forbids   bool // sometimes the publisher lacks the right for a topic
}

// stored is a row of the outbox in the model.
type stored struct {
	Message

	due     time.Time // may be zero
	commit  int       // number in the order of commits
	closes  bool      // the broker closes the channel when it gets this message
	invalid bool      // the broker can never accept this message
	beat    bool      // written after heal
}

type blockedKey struct {
	position, successorsAfter int64
	dead                      bool
}

const slotCount = 4

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(seed uint64, p plant) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		rng: rng, now: start, plant: p, table: map[int64]*stored{}, blocked: map[string]*blockedKey{}, closing: map[string]bool{},
		dead: map[int64]bool{}, late: map[int64]bool{}, stored: map[int64]bool{}, refused: map[int64]bool{}, ever: map[int64]bool{},
		open: map[int64]bool{}, owned: map[int64]bool{},
	}
	w.profile = profile{
		failures: pick(rng, 0, 0, 0.1, 0.4), refusals: pick(rng, 0, 0.1, 0.4), unknown: pick(rng, 0, 0, 0.05, 0.3),
		outages: rng.IntN(3) == 0, vague: rng.IntN(2) == 0, silent: rng.IntN(3) == 0,
		explains: rng.IntN(2) == 0, blockDead: rng.IntN(4) == 0, keys: pick(rng, 1, 4, 12), bulk: rng.IntN(5) == 0,
	}
	if w.profile.bulk && rng.IntN(2) == 0 { // test lookaheads without failures, because failures cause sweeps from the start
		w.profile = profile{bulk: true, explains: true, keys: w.profile.keys}
	}
	w.profile.pauses = rng.IntN(3) == 0
	w.profile.forbids = w.profile.explains && rng.IntN(3) == 0
	w.restart()
	return w
}

func pick[T any](rng *rand.Rand, choices ...T) T { return choices[rng.IntN(len(choices))] }

// restart begins a process with a new Scheduler. Everything that the previous process
// had in memory is lost.
func (w *world) restart() {
	w.process++
	w.heeds = false
	w.inFlight, w.done, w.sent = map[int64]bool{}, map[int64]bool{}, nil
	rescan := 1000 * time.Hour
	if w.profile.blockDead {
		// release can block a key with a row that is confirmed and about to be deleted.
		// Only Tidy ends that block.
		rescan = time.Minute
	}
	config := Config{
		BatchSize:     pick(w.rng, 4, 16, 100),
		Window:        pick(w.rng, 1, 4, 16, 100),
		BufferBytes:   pick(w.rng, 300, 100_000),
		LookaheadRows: pick(w.rng, 3, 20, 200),
		PollMin:       5 * time.Millisecond,
		PollMax:       250 * time.Millisecond,
		StallTimeout:  pick(w.rng, 300*time.Millisecond, 5*time.Second),
		CloseTimeout:  time.Second,
		RescanEvery:   rescan,
		Policy:        policyOf,
		Pause: func(failures int) time.Duration {
			return min(20*time.Millisecond<<min(failures, 10), 150*time.Millisecond)
		},
		Jitter: func(d time.Duration) time.Duration { return d + time.Duration((w.rng.Float64()*2-1)*float64(d)/5) },
	}
	if w.profile.bulk { // a backlog that is longer than the memory
		config.BatchSize, config.Window, config.BufferBytes = 4, pick(w.rng, 1, 4), 100_000
	}
	if w.plant.policy != nil {
		config.Policy = w.plant.policy
	}
	w.s = New(config)
	w.s.holdFrom, w.s.trials = pick(w.rng, 2, w.s.holdFrom), pick(w.rng, 1, 3)
	w.closed = false
	w.grant(w.leased())
}

// policyOf returns the policy of a topic.
func policyOf(topic string) Policy {
	p := Policy{MaxAttempts: 3, Backoff: func(attempt int) time.Duration { return time.Duration(attempt) * 200 * time.Millisecond }}
	switch topic {
	case "topic1":
		p.MaxAttempts = 1
	case "topic2":
		p.MaxAttempts, p.Backoff = 6, func(int) time.Duration { return 50 * time.Millisecond }
	}
	return p
}

// grant gives the Scheduler its slots.
func (w *world) grant(slots []int64) {
	w.tracef("process %d has slots %v", w.process, slots)
	w.granted = map[int64]bool{}
	for _, slot := range slots {
		w.granted[slot] = true
	}
	w.s.SetSlots(slots)
}

func (w *world) leased() []int64 {
	var slots []int64
	for slot := range int64(slotCount) {
		if w.owned[slot] {
			slots = append(slots, slot)
		}
	}
	return slots
}

func (w *world) failf(format string, args ...any) {
	if w.broken == nil {
		w.broken = fmt.Errorf("at %v: %w", w.now.Sub(start), fmt.Errorf(format, args...)) //nolint:err113 // a test
	}
}

// tracef logs what happens, if the flags -print and -v are set.
func (w *world) tracef(format string, args ...any) {
	if w.logf != nil {
		w.logf("%-14v "+format, append([]any{w.now.Sub(start)}, args...)...)
	}
}

func (w *world) traceCommands(c *Commands) {
	if c.Read != nil {
		w.tracef("command: read %+v, cursor %+v", *c.Read, w.s.cursor)
	}
	for _, p := range c.Publish {
		w.tracef("command: publish %d, key %q, topic %s", p.Message.Position, p.Message.Key, p.Message.Topic)
	}
	if c.Settle == nil {
		return
	}
	for _, m := range c.Settle.Confirmed {
		w.tracef("command: delete %d", m.Position)
	}
	for _, charge := range c.Settle.Charges {
		w.tracef("command: charge %d with %d", charge.Message.Position, charge.Attempts)
	}
	for _, d := range c.Settle.Deaths {
		w.tracef("command: %d is dead", d.Message.Position)
	}
}

// event is a step of the simulation and the time at which it happens.
type event struct {
	at   time.Time
	seq  int
	then func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}

// later calls the function f after a random delay of at most longest.
func (w *world) later(longest time.Duration, f func()) {
	w.seq++
	heap.Push(&w.events, event{w.now.Add(time.Duration(w.rng.Int64N(int64(longest) + 1))), w.seq, f})
}

// inProcess is like later, but does not call f if the process was restarted during the
// delay.
func (w *world) inProcess(longest time.Duration, f func()) { w.report(w.process, longest, f) }

// report is like later, but calls f only if the given process is still running after the
// delay.
func (w *world) report(process int, longest time.Duration, f func()) {
	w.later(longest, func() {
		if w.process == process {
			f()
		}
	})
}

// run runs the simulation until ended returns true, but for no longer than limit. It
// reports whether ended returned true.
func (w *world) run(limit time.Duration, ended func() bool) bool {
	until := w.now.Add(limit)
	for idle := 0; w.broken == nil && w.now.Before(until); {
		before := w.now
		w.step()
		if ended() {
			return true
		}
		if len(w.events) == 0 || w.wakeAt.Before(w.events[0].at) {
			if idle++; w.wakeAt.After(before) {
				idle = 0
			}
			if idle > 100 {
				w.failf("the scheduler wakes again and again without anything to do")
			}
			if w.wakeAt.After(w.now) {
				w.now = w.wakeAt
			}
			continue
		}
		idle = 0
		e := heap.Pop(&w.events).(event)
		if e.at.After(w.now) {
			w.now = e.at
		}
		e.then()
	}
	return false
}

// step calls Step, and starts the work that its commands ask for.
func (w *world) step() {
	w.steps++
	c := w.s.Step(w.now)
	if w.plant.commands != nil {
		w.plant.commands(w, &c)
	}
	w.wakeAt = c.WakeAt
	w.closed = c.Drained || c.Expired
	w.traceCommands(&c)
	if c.Write {
		w.renew()
	}
	if c.Read != nil {
		w.read(c.Read)
	}
	for _, p := range c.Publish {
		w.publish(p)
	}
	if c.Settle != nil {
		w.settle(c.Settle)
	}
}

// begin begins a transaction that writes, and returns its id. The method end ends the
// transaction.
func (w *world) begin() (xid int64) {
	w.lastXID++
	w.open[w.lastXID] = true
	return w.lastXID
}

func (w *world) end(xid int64) {
	delete(w.open, xid)
	w.lastEnded = max(w.lastEnded, xid)
}

// snapshot returns which transactions the server reports as ended, see Reach.Horizon
// and Reach.Ceiling.
func (w *world) snapshot() (horizon, ceiling int64) {
	ceiling = w.lastEnded + 1
	horizon = ceiling
	for xid := range w.open {
		horizon = min(horizon, xid)
	}
	if w.releasing > 0 && len(w.blocked) > 0 {
		horizon = 0 // see snapshotQuery in package forwarder
	}
	return horizon, ceiling
}

func (w *world) fails() bool { return !w.healed && w.rng.Float64() < w.profile.failures }

var errFailed = errors.New("failed")

// read simulates a Read. It looks at the transactions first, and then at the rows.
func (w *world) read(r *Read) {
	const delay = 20 * time.Millisecond
	process := w.process
	w.later(delay, func() {
		if r.Tidy {
			w.tidy()
		}
		var horizon, ceiling int64
		if !r.Refill {
			horizon, ceiling = w.snapshot()
		}
		w.later(delay/4, func() {
			failed := w.fails()
			rows, at := w.rows(r)
			at.Pauses = w.pauses
			changes := w.changes
			if r.Lookahead {
				rows, at = w.ahead(r)
			}
			if r.State {
				rows, at = nil, Reach{Pauses: w.pauses}
			}
			at.Horizon, at.Ceiling = horizon, ceiling
			if w.plant.rows != nil {
				w.plant.rows(w, r, &rows, &at)
			}
			w.report(process, delay, func() {
				w.tracef("read: %d rows %+v, failed %t", len(rows), at, failed)
				if failed {
					w.s.ReadFailed(w.now, r, errFailed)
				} else {
					w.s.RowsRead(w.now, r, rows, at)
					w.heeds = w.heeds || changes == w.changes && !r.Refill && !r.Lookahead
				}
			})
		})
	})
}

// rows returns the rows that the queries of package forwarder would return.
func (w *world) rows(r *Read) ([]*Message, Reach) {
	var byDue, byPos []*stored
	var left int64
	for _, row := range w.table {
		switch blocked := w.blocked[row.Key]; {
		case slices.Contains(r.Known, row.Position) || !slices.Contains(r.Slots, row.Slot):
		case blocked != nil && blocked.position != row.Position:
		case r.Refill && !slices.Contains(r.Keys, row.Key):
		case !r.Refill && row.Key != "" && slices.Contains(r.Keys, row.Key):
		case !r.Refill && row.Key == "" && slices.Contains(r.Topics, row.Topic):
		case (row.Key == "" || !row.due.IsZero()) && r.Pauses.Include(row.Topic, row.Tenant):
			left = max(left, row.Position)
		case row.due.IsZero():
			if row.Position > r.From {
				byPos = append(byPos, row)
			}
		case !r.Refill && !row.due.After(w.now):
			byDue = append(byDue, row)
		}
	}
	slices.SortFunc(byPos, func(a, b *stored) int { return cmp.Compare(a.Position, b.Position) })
	slices.SortFunc(byDue, func(a, b *stored) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.Position, b.Position))
	})
	byPos = byPos[:min(len(byPos), r.Limit)]
	byDue = byDue[:min(len(byDue), max(1, r.Limit/2))]
	var (
		found []*Message
		size  int
		full  bool
	)
	for _, row := range append(byDue, byPos...) {
		if full = size >= r.Bytes; full {
			break
		}
		m := row.Message
		m.Due = !row.due.IsZero()
		if b := w.blocked[row.Key]; b != nil {
			m.BlocksKey, m.SuccessorsAfter = true, b.successorsAfter
		}
		if m.Payload = make([]byte, len(row.Payload)); r.Pauses.Include(m.Topic, m.Tenant) {
			m.Paused, m.Payload = true, nil
		}
		size += m.Size()
		found = append(found, &m)
	}
	at := r.Reach(found, full)
	if at.Covered == Everything {
		at.Highest = max(at.Highest, left)
	}
	slices.SortFunc(found, byPosition)
	return found, at
}
