package failpoints

import (
	"bytes"
	"errors"
	"time"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

// scenario contains the configuration of a process that reaches certain failpoints, and the state
// that the tables must have in the end.
type scenario struct {
	name     string
	embedded bool
	life     life

	seed    func(w *world) // prepares the tables before the first process
	earlier func(w *world) // runs processes before the one that is killed
	after   func(l *life)  // changes the life of the process that does the remaining work

	untilThen func(w *world) bool // additional condition for the end of the remaining work

	handled []string // orders that must have taken effect
	failed  []string // orders that must be in quarantine
	dead    []string // messages that must be dead letters
	before  []string // messages that seed has written together with their orders
	check   func(w *world)

	points []string
}

var (
	three = []string{"m1", "m2", "m3"}
	stuck = []string{"q1", "q2"}
)

// killedAt returns a function for scenario.earlier, which runs a process that is killed
// at point.
func killedAt(point string) func(w *world) {
	return func(w *world) { begin(w.T, w.program, w.life, point).killed(w.T) }
}

var scenarios = []scenario{
	{
		name: "way", life: life{Writes: three}, handled: three, seed: old, check: forgotten,
		untilThen: func(w *world) bool {
			return w.count(`once_inbox WHERE message_id = 'old'`)+w.count(`once_outbox_sent WHERE message_id = 'old'`)+w.count(`once_parked`) == 0
		},
		points: []string{
			"outbox/begun", "outbox/insert", "outbox/inserted", "outbox/inserted:2", "outbox/worked", "outbox/committed",
			"forwarder/enrolled", "forwarder/slots-taken", "forwarder/leased", "forwarder/leased:2", "forwarder/blocked-keys-tidied",
			"forwarder/publish", "forwarder/publish:2", "forwarder/handed-over", "rabbit/published", "rabbit/report",
			"forwarder/answered", "forwarder/answered:2", "forwarder/remove", "forwarder/rows-deleted", "forwarder/removed",
			"forwarder/sent-forgotten",
			"rabbit/received", "rabbit/handed-over", "dedup/claim", "dedup/claimed", "dedup/handled", "dedup/commit",
			"dedup/committed", "retry/handled", "rabbit/ack", "rabbit/acked",
			"dedup/keys-recorded", "dedup/sweep", "dedup/swept", "dedup/sweep:2",
		},
	},
	{
		name: "redelivered", life: life{Writes: three}, handled: three, earlier: killedAt("rabbit/ack"),
		points: []string{
			"retry/park", "parked/park", "retry/parked", "rabbit/ack", "rabbit/acked", "parked/claim", "parked/claimed", "retry/hand-out",
			"dedup/known", "parked/settle", "parked/removed", "parked/changed", "parked/settled",
		},
	},
	{
		name: "slow", life: life{Writes: three, Blocks: true}, handled: three, earlier: killedAt("dedup/handled"), // no message is committed
		after:  func(l *life) { l.Blocks = false },
		points: []string{"parked/extended"},
	},
	{
		name: "failing twice", life: life{Writes: three, Fails: 3}, handled: three,
		points: []string{
			"dedup/failed", "retry/again", "retry/park", "parked/park", "retry/parked", "rabbit/ack", "parked/claim", "parked/claimed",
			"dedup/failed:4", "retry/park:4", "parked/settle", "parked/changed", "parked/settled", "retry/handled", "parked/removed",
		},
	},
	{
		name: "failing", life: life{Writes: three, Fails: always}, failed: three,
		points: []string{
			"poison/quarantine", "parked/quarantined", "parked/changed", "poison/quarantined",
		},
	},
	{
		name: "outage of a service", life: life{Writes: three, Outage: true}, handled: three,
		untilThen: func(w *world) bool { return w.count(`once_consumer_pauses`) == 0 },
		check: func(w *world) {
			opened, closed := w.count(`once_audit WHERE action = 'breaker.opened'`), w.count(`once_audit WHERE action = 'breaker.closed'`)
			if opened != closed {
				w.Errorf("the breaker was opened %d times and closed %d times", opened, closed)
			}
		},
		points: []string{
			"parked/breaker-failing", "parked/breaker-opened", "parked/breaker-open", "parked/given-back", "parked/probe-claimed",
			"parked/probe-failed", "parked/probe-claimed:2", "parked/breaker-closed", "parked/breaker-close",
		},
	},
	{
		name: "limited", life: life{Writes: three, Limited: true}, handled: three,
		points: []string{"parked/starts-taken", "parked/starts-taken:3"},
	},
	{
		name: "failing, durable", life: life{Writes: three, Fails: always, Durable: true}, failed: three,
		points: []string{"retry/park", "poison/quarantine", "parked/quarantined", "poison/quarantined"},
	},
	{
		name: "durable", life: life{Writes: three, Durable: true}, handled: three,
		points: []string{
			"durable/store", "parked/delivered", "durable/ack", "durable/ack:2", "durable/acked", "parked/claim", "parked/claimed",
			"dedup/claimed", "dedup/committed", "retry/handled", "parked/settle", "parked/removed", "parked/settled", "parked/forgotten",
		},
	},
	{
		name: "batches", life: life{Writes: three, Batches: true, Durable: true}, handled: three,
		points: []string{
			"dedup/batch-claim", "dedup/batch-claimed", "dedup/batch-one-handled", "dedup/batch-handled", "dedup/batch-commit",
			"dedup/batch-committed", "dedup/batch-settle", "dedup/batch-settle:2",
		},
	},
	{
		name: "batch with one that fails", life: life{Writes: three, Batches: true, Fails: 2, FailsFor: "m2"}, handled: three,
		points: []string{"dedup/batch-undone", "dedup/batch-undone:2", "dedup/batch-committed", "dedup/batch-commit:2", "retry/park"},
	},
	{
		name: "key order", life: life{Writes: three, Keyed: true, Fails: 3, FailsFor: "m1"}, handled: three,
		check: func(w *world) { w.inOrder(three...) },
		points: []string{
			"forwarder/publish:2", "forwarder/removed", "parked/delivered", "retry/stored", "parked/claimed", "retry/parked",
			"parked/changed", "parked/promoted", "parked/settled",
		},
	},
	{
		name: "versions", life: life{Writes: three, Versions: true}, handled: three,
		check: func(w *world) { w.inOrder("m3", "m1", "m2") },
		points: []string{
			"parked/park-early", "sequence/decided", "sequence/written", "sequence/woken", "dedup/commit", "dedup/committed", "parked/settle",
		},
	},
	{
		name: "refused", life: life{Writes: three, Keyed: true, NoConsumer: true}, handled: three,
		after:  func(l *life) { l.NoConsumer = false },
		check:  func(w *world) { w.inOrder(three...) },
		points: []string{"forwarder/charge", "forwarder/attempt-charged", "forwarder/key-blocked", "forwarder/charged"},
	},
	{
		name: "accepted after all", life: life{Writes: three, Keyed: true, NoConsumer: true}, handled: three,
		earlier: func(w *world) {
			for w.count(`once_blocked_keys`) == 0 { // a forwarder whose lease has ended counts no attempt
				killedAt("forwarder/charged")(w)
			}
			w.life.NoConsumer = false
		},
		check:  func(w *world) { w.inOrder(three...) },
		points: []string{"forwarder/remove", "forwarder/key-unblocked", "forwarder/rows-deleted", "forwarder/removed"},
	},
	{
		name: "dying", life: life{Writes: three, Keyed: true, NoConsumer: true, MaxAttempts: 1}, handled: three,
		after:     func(l *life) { l.NoConsumer, l.Operate = false, replayDead },
		untilThen: func(w *world) bool { return w.count(`once_outbox_dead`) == 0 },
		check:     func(w *world) { w.inOrder(three...) },
		points: []string{
			"forwarder/give-up", "forwarder/dead-row-written", "forwarder/dead-row-deleted", "forwarder/dead-key-set", "forwarder/given-up",
		},
	},
	{
		name: "dead, replayed", life: life{Keyed: true, Operate: replayDead}, handled: []string{"d1", "d2"}, before: []string{"d1", "d2"},
		seed:      deadLetter,
		untilThen: func(w *world) bool { return w.count(`once_outbox_dead`) == 0 },
		check: func(w *world) {
			w.inOrder("d1", "d2")
			w.audited("replay", 1)
		},
		points: []string{
			"replay/begin", "replay/begun", "replay/released", "replay/advance", "replay/advanced", "replay/end",
			"dead/letters-put-back", "dead/blocked-keys-moved", "dead/batch-changed", "dead/batch-audited",
			"forwarder/key-unblocked",
		},
	},
	{
		name: "dead, discarded", life: life{Keyed: true, Operate: discardDead}, handled: []string{"d2"}, before: []string{"d1", "d2"},
		seed:      deadLetter,
		untilThen: func(w *world) bool { return w.count(`once_outbox_dead`) == 0 },
		check:     func(w *world) { w.audited("discard", 1) },
		points: []string{
			"operate/unblocking", "operate/unblocking:2", "operate/unblocking:3", "dead/batch-changed", "dead/batch-committed",
		},
	},
	{
		name: "dead, its key released", life: life{Keyed: true, Operate: releaseDead},
		handled: []string{"d2"}, dead: []string{"d1"}, before: []string{"d1", "d2"},
		seed:   deadLetter,
		check:  func(w *world) { w.audited("release", 1) },
		points: []string{"operate/unblocking:2", "dead/key-released"},
	},
	{
		name: "backing off, retried", life: life{Keyed: true, Operate: retryNow}, handled: []string{"d1", "d2"}, before: []string{"d1", "d2"},
		seed: backingOff,
		check: func(w *world) {
			w.inOrder("d1", "d2")
			w.audited("retry", 1)
		},
		points: []string{"operate/outbox/due"},
	},
	{
		name: "backing off, cancelled", life: life{Keyed: true, Operate: cancelNow},
		handled: []string{"d2"}, dead: []string{"d1"}, before: []string{"d1", "d2"},
		seed:  backingOff,
		check: func(w *world) { w.audited("cancel", 1) },
		points: []string{
			"operate/outbox/barriers-locked", "operate/outbox/burying", "operate/outbox/burying:2", "operate/unblocking", "operate/outbox/cancelled",
		},
	},
	{
		name: "paused and resumed", life: life{Writes: three, Keyed: true, Operate: pauseAndResume}, handled: three,
		check: func(w *world) {
			w.inOrder(three...)
			// Each change has one audit row, and there are no other audit rows.
			if more := w.count(`once_audit WHERE action = 'pause'`) - w.count(`once_audit WHERE action = 'resume'`); more != w.count(`once_pauses`) {
				w.Errorf("the topic was paused %d times more than resumed", more)
			}
		},
		points: []string{
			"operate/outbox/pause-changed", "operate/outbox/pause-changed:2", "operate/outbox/pause-committed",
			"operate/outbox/pause-committed:2", "operate/outbox/pause-changed:5",
		},
	},
	{
		name: "told to end", life: life{Writes: three, Stops: true}, handled: three,
		after:  func(l *life) { l.Stops = false },
		points: []string{"rabbit/requeue", "rabbit/requeued", "rabbit/give-back", "forwarder/leave", "forwarder/leave:2", "forwarder/resigned"},
	},
	{
		name: "crashing", life: life{Writes: three, Exits: "m1"}, handled: []string{"m2", "m3"}, failed: []string{"m1"},
		earlier: crashed,
		points:  []string{"retry/hand-out", "poison/quarantine", "parked/quarantined", "poison/quarantined"},
	},
	{
		name: "crashing, durable, with key order", life: life{Writes: three, Exits: "m1", Keyed: true, Durable: true},
		handled: []string{"m2", "m3"}, failed: []string{"m1"},
		earlier: crashed,
		check:   func(w *world) { w.inOrder("m2", "m3") },
		points:  []string{"retry/hand-out", "poison/quarantine", "parked/quarantined", "poison/quarantined"},
	},
	{
		name: "damaged", seed: damaged, failed: []string{"damaged"},
		points: []string{"parked/claimed", "retry/hand-out", "poison/quarantine", "parked/quarantined", "poison/quarantined"},
	},
	{
		name: "out of quarantine", life: life{Operate: replay}, handled: stuck,
		seed:  func(w *world) { w.quarantine(stuck...) },
		check: func(w *world) { w.audited("replay", len(stuck)) },
		points: []string{
			"operate/quarantine/replay", "operate/quarantine/replay:2", "operate/quarantine/audited",
			"operate/quarantine/audited:2", "parked/claimed", "parked/removed",
		},
	},
	{
		name: "discarded", life: life{Operate: discard},
		seed:      func(w *world) { w.quarantine(stuck...) },
		untilThen: func(w *world) bool { return w.count(`once_parked WHERE state = 'quarantined'`) == 0 },
		check: func(w *world) {
			w.audited("discard", len(stuck))
			w.same("tombstones", w.strings(`SELECT message_id FROM once_inbox`), stuck)
		},
		points: []string{
			"operate/quarantine/discard", "operate/quarantine/tombstone", "operate/quarantine/audited",
			"operate/quarantine/audited:2",
		},
	},
	{
		name: "edited", life: life{Operate: edit}, handled: []string{"q1-edited", "q2-edited"},
		seed: func(w *world) { w.quarantine(stuck...) },
		check: func(w *world) {
			w.audited("edit", len(stuck))
			w.audited("edited", len(stuck))
		},
		points: []string{
			"operate/quarantine/discard", "operate/quarantine/tombstone", "operate/quarantine/edited",
			"operate/quarantine/audited", "operate/quarantine/audited:2",
		},
	},
	{
		name: "imported", failed: stuck,
		seed: func(w *world) {
			w.quarantine(stuck...)
			entries, err := quarantine.New(w.DB, operate.Config{})
			kit.OK(w, err)
			var out bytes.Buffer
			kit.OK(w, kit.Err(entries.Export(w.Context(), operate.Filter{}, &out)))
			w.exec(`DELETE FROM once_parked`)
			w.life.Operate, w.life.Export = importAll, out.String()
		},
		check:  func(w *world) { w.audited("import", len(stuck)) },
		points: []string{"operate/quarantine/import", "operate/quarantine/audited:2"},
	},
	{
		name: "replayed together", life: life{Operate: replayMany}, handled: stuck,
		seed:      func(w *world) { w.quarantine(stuck...) },
		untilThen: func(w *world) bool { return w.count(`once_replays WHERE state = 'finished'`) == 1 },
		check:     replayedOnce,
		points: []string{
			"replay/begin", "replay/begun", "replay/inbox-forgotten", "replay/due", "replay/released", "replay/advance", "replay/advanced",
			"replay/end",
		},
	},
	{
		name: "resumed", life: life{Operate: replayMany}, handled: stuck, earlier: killedAt("replay/advanced"),
		seed:      func(w *world) { w.quarantine(stuck...) },
		untilThen: func(w *world) bool { return w.count(`once_replays WHERE state = 'finished'`) == 1 },
		check:     replayedOnce,
		points:    []string{"replay/resume", "replay/end"},
	},
	{
		name: "stopped", life: life{Operate: replayMany}, handled: stuck,
		seed: func(w *world) { w.quarantine(stuck...) },
		earlier: func(w *world) {
			killedAt("replay/advanced")(w)
			w.life.Operate = stopMany
		},
		untilThen: func(w *world) bool { return w.count(`once_replays WHERE state = 'finished'`) == 1 },
		check:     replayedOnce,
		points:    []string{"replay/stop", "replay/stopped"},
	},
	{
		name: "moved", life: life{Moves: true}, handled: three, dead: []string{"malformed"}, seed: stockTables,
		untilThen: func(w *world) bool { return w.count(`once_outbox_dead`) > 0 },
		points:    []string{"mover/group-created", "mover/locked", "mover/dead-letter", "mover/inserted", "mover/advanced", "mover/moved"},
	},
	{
		name: "embedded", embedded: true, life: life{Dialect: "sqlite", Writes: three}, handled: three,
		points: []string{
			"outbox/inserted", "outbox/committed", "forwarder/leased", "forwarder/publish", "embedded/deliver", "parked/delivered",
			"embedded/delivered", "forwarder/remove", "forwarder/sent-logged", "forwarder/rows-deleted", "forwarder/removed",
			"parked/claim", "parked/claimed", "dedup/claimed", "dedup/handled", "dedup/commit", "dedup/committed", "parked/removed",
			"parked/settled",
		},
	},
}

// operatorScenarios contains the scenarios in which an operator changes parked messages.
var operatorScenarios = []scenario{
	{
		name: "parked, run now", life: life{Operate: runParked}, handled: stuck,
		seed:   waiting,
		check:  func(w *world) { w.audited("run", len(stuck)) },
		points: []string{"parked/candidates-locked", "parked/applied", "parked/operated"},
	},
	{
		name: "parked, cancelled", life: life{Operate: endParked}, failed: stuck,
		seed:   waiting,
		check:  func(w *world) { w.audited("cancel", len(stuck)) },
		points: []string{"parked/candidates-locked", "parked/applied", "parked/operated"},
	},
	{
		name: "parked, discarded", life: life{Operate: dropParked},
		seed:      waiting,
		untilThen: func(w *world) bool { return w.count(`once_parked WHERE state = 'waiting'`) == 0 },
		check: func(w *world) {
			w.audited("discard", len(stuck))
			w.same("tombstones", w.strings(`SELECT message_id FROM once_inbox`), stuck)
		},
		points: []string{"parked/candidates-locked", "parked/applied", "parked/operated"},
	},
	{
		name: "consumer paused and resumed", life: life{Writes: three, Operate: pauseConsumer}, handled: three,
		check: func(w *world) {
			// Each change has one audit row.
			more := w.count(`once_audit WHERE action = 'consumer.paused'`) - w.count(`once_audit WHERE action = 'consumer.resumed'`)
			if more != w.count(`once_consumer_pauses`) {
				w.Errorf("the consumer was paused %d times more than resumed", more)
			}
		},
		points: []string{
			"parked/pauses-read", "parked/pauses-read:2", "retry/pause", "retry/paused", "parked/pause-changed", "parked/pause-changed:2",
			"parked/pause-committed", "parked/pause-committed:2",
		},
	},
	{
		name: "consumer removed", life: life{Operate: retire},
		seed: func(w *world) {
			w.exec(`INSERT INTO once_consumers (consumer, topic, seen_at) VALUES ('gone', 'orders', now() - interval '1 hour')`)
		},
		untilThen: func(w *world) bool { return w.count(`once_consumers WHERE consumer = 'gone'`) == 0 },
		check:     func(w *world) { w.audited("remove", 1) },
		points:    []string{"parked/consumer-removed"},
	},
}

// waiting seeds parked messages that are due much later.
func waiting(w *world) {
	w.Helper()
	for n, id := range stuck {
		kit.OK(w, w.parked.Park(w.Context(), &parkedrows.Delivery{Consumer: orders, Topic: orders}, w.life.message(n, id),
			parkedrows.Failure{Err: errors.New("it failed before"), Attempts: 1}, time.Hour))
	}
}
