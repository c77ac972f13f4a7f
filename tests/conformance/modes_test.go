package conformance

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/retry"
)

// mode selects the features of a consumer. The zero value uses none of them.
type mode struct {
	Durable  bool           `json:"durable"`   // durable consumer
	Batches  string         `json:"batches"`   // "" no batches, "each" a handler for each message, "together" a batch handler
	KeyOrder retry.KeyOrder `json:"key_order"` // value of retry.Config.KeyOrder
	Versions string         `json:"versions"`  // versions that are applied: "" any, "newer" only newer versions, "all" all in order
	Stock    bool           `json:"stock"`     // watermill-amqp's subscriber is used instead of ours
	SQL      bool           `json:"sql"`       // watermill-sql's publisher stores the messages that handlers return
}

// modes contains each feature, and the useful combinations of features.
var modes = map[string]mode{
	"direct":                       {},
	"direct, stock subscriber":     {Stock: true},
	"direct, watermill-sql":        {SQL: true},
	"durable":                      {Durable: true},
	"batches":                      {Batches: "each"},
	"batch handler":                {Batches: "together"},
	"batches, durable":             {Batches: "each", Durable: true},
	"batch handler, durable":       {Batches: "together", Durable: true},
	"order, goes on":               {KeyOrder: retry.BlockWhileRetried},
	"order, stays held":            {KeyOrder: retry.BlockWhileQuarantined},
	"order, skips what fails":      {KeyOrder: retry.BlockWhileRunning},
	"order, batches":               {KeyOrder: retry.BlockWhileRetried, Batches: "each"},
	"order, batch handler":         {KeyOrder: retry.BlockWhileRetried, Batches: "together"},
	"order, durable":               {KeyOrder: retry.BlockWhileRetried, Durable: true},
	"newer versions":               {Versions: "newer"},
	"all versions":                 {Versions: "all"},
	"all versions, batches":        {Versions: "all", Batches: "each"},
	"all versions, order, durable": {Versions: "all", KeyOrder: retry.BlockWhileRetried, Durable: true},
}

// shortModes contains the modes that run with -short. On SQLite only the first of them
// runs. TestKilledAtEveryStepOfABatch runs batches.
var shortModes = []string{"direct", "all versions, order, durable"}

// eachMode runs a test twice in each mode: on PostgreSQL with RabbitMQ, and on SQLite
// with the embedded transport. Modes that need RabbitMQ run only on PostgreSQL.
func eachMode(t *testing.T, test func(w *world, l life)) {
	broker := kit.Rabbit(t)
	for _, name := range slices.Sorted(maps.Keys(modes)) {
		m := modes[name]
		run := func(backend string, test func(t *testing.T)) {
			t.Run(strings.ReplaceAll(name, ", ", ",")+"/"+backend, func(t *testing.T) {
				t.Parallel()
				if !slices.Contains(shortModes, name) || backend == "sqlite" && name != shortModes[0] {
					kit.Long(t)
				}
				test(t)
			})
		}
		run("rabbit", func(t *testing.T) {
			w := newWorld(t, kit.Postgres(t))
			l := life{mode: m, Dialect: w.Dialect, DSN: w.DSN, Transport: broker.URL}
			l.Queue, w.broker = newQueue(t, broker)
			test(w, l)
		})
		if m.Stock {
			continue // such a mode needs RabbitMQ
		}
		run("sqlite", func(t *testing.T) {
			w := newWorld(t, kit.SQLite(t))
			test(w, life{mode: m, Dialect: w.Dialect, DSN: w.DSN, Transport: "local"})
		})
	}
}

// points returns the steps that a message goes through in a mode.
func (l life) points() (points []point) {
	received := l.Transport != "local"
	stored := l.Durable || l.KeyOrder != retry.Unordered
	if received {
		points = append(points, point{"receive", before})
		points = append(points, of(l.Dialect, "ack", before, after)...)
	}
	if received && stored {
		points = append(points, of(l.Dialect, "park", before, sent, done)...)
	}
	if !received || stored {
		points = append(points, of(l.Dialect, "claim", done)...)
		points = append(points, of(l.Dialect, "resolve", before, done)...)
	}
	points = append(points, of(l.Dialect, "inbox", before, after)...)
	if l.Versions != "" {
		points = append(points, of(l.Dialect, "first", after)...)
		points = append(points, of(l.Dialect, "version", after)...)
	}
	points = append(points, of(l.Dialect, "effect", after)...)
	points = append(points, of(l.Dialect, "outbox", after)...)
	return append(points, of(l.Dialect, "inbox", committed, sent, done)...)
}

// One process after the other is killed, each at a later step. Each process finds new messages, and
// the state that the earlier processes have left. Each message takes effect once, together with the
// messages that its handler returned. It takes effect in order if its key or its version requires
// this.
func TestKilledAgainAndAgain(t *testing.T) {
	eachMode(t, func(w *world, l life) {
		l.Budget = 1000 // messages of killed processes must not be given up on
		l.FailsOnce = l.KeyOrder != retry.Unordered
		points := l.points()
		for round, at := range points {
			w.put(l, idsOfRound(round)...)
			l.Dies = at
			if status := begin(w.T, l).end(w.T); !status.Signaled() {
				w.Fatalf("%s %s: the process was not killed, it ended with %v", at.When, at.Of, status)
			}
			if n := w.count(`(SELECT message_id FROM effects GROUP BY message_id HAVING COUNT(*) > 1) AS twice`); n > 0 {
				w.Fatalf("%s %s: %d effects happened twice", at.When, at.Of, n)
			}
		}
		l.Dies = point{}
		last := begin(w.T, l)
		kit.Eventually(w.T, patience, "everything is settled", func() bool {
			return w.settled() && w.count(`once_inbox`) == len(points)*len(messages)
		})
		last.stop(w.T)
		if n := w.count(`once_parked`); n != 0 {
			w.Errorf("%d parked rows are left", n)
		}
		if l.Versions == "newer" {
			w.newestLast(len(points))
			return
		}
		var all []string
		for round := range points {
			all = append(all, idsOfRound(round)...)
		}
		w.checkOnce(all...)
		switch {
		case l.Versions == "all":
			w.inOrder(len(points), 2, 0, 1)
		case l.KeyOrder == retry.BlockWhileRetried, l.KeyOrder == retry.BlockWhileQuarantined:
			w.inOrder(len(points), 0, 1, 2)
		}
	})
}

// inOrder fails the test unless the messages of each round took effect in the given
// order. places are indexes of messages.
func (w *world) inOrder(rounds int, places ...int) {
	w.Helper()
	effects := w.effects()
	for round := range rounds {
		var got []int
		for _, id := range effects {
			if of, n := placeOf(id); of == fmt.Sprint(round) {
				got = append(got, n)
			}
		}
		if !slices.Equal(got, places) {
			w.Errorf("round %d took effect in the order %v, want %v", round, got, places)
		}
	}
}

// newestLast fails the test unless, in each round, the applied versions increased and ended with
// the highest version, and each applied message produced its messages.
func (w *world) newestLast(rounds int) {
	w.Helper()
	effects := w.effects()
	for round := range rounds {
		last := -1
		for _, id := range effects {
			of, n := placeOf(id)
			version := (n + 1) % len(messages)
			if of != fmt.Sprint(round) {
				continue
			}
			if version <= last {
				w.Errorf("round %d went from version %d back to %d", round, last+1, version+1)
			}
			last = version
		}
		if last != len(messages)-1 {
			w.Errorf("round %d ended with version %d", round, last+1)
		}
	}
	if n := w.count(`once_outbox`); n != len(effects) {
		w.Errorf("%d messages were produced by %d effects", n, len(effects))
	}
}

// A message that fails waits for its next attempt, and a message that fails permanently is in
// quarantine, unchanged. All other messages take effect meanwhile.
func TestFailuresDoNotBlockOtherMessages(t *testing.T) {
	eachMode(t, func(w *world, l life) {
		l.Pause = time.Hour
		ids := append(idsOfRound(0), idsOfRound(1)...)
		if l.Versions == "newer" {
			ids = []string{"0m2", "1m2", "2m2"} // one version of each aggregate, so that no message is stale
		}
		w.put(l, failing, hopeless)
		w.put(l, ids...)
		p := begin(w.T, l)
		kit.Eventually(w.T, patience, "all other messages took effect", func() bool {
			return w.count(`effects`) == len(ids) && w.count(`once_parked`) == 2 &&
				w.count(`once_parked WHERE attempts = 1`) == 2 && w.count(`once_parked WHERE state = 'quarantined'`) == 1
		})
		p.stop(w.T)
		w.checkOnce(ids...)
		if n := w.count(`once_parked WHERE message_id = 'failing' AND state = 'waiting' AND attempts = 1 AND crashes = 0`); n != 1 {
			w.Error("the failing message does not wait for its second attempt")
		}
		entries := rows.Parked(w, w.parked, parkedrows.Quarantined)
		if len(entries) != 1 {
			w.Fatalf("%d in quarantine", len(entries))
		}
		got, want := entries[0].Message, newMessage(hopeless)
		delete(got.Metadata, "once_redelivered") // the transport sets it
		if got.UUID != want.UUID || !bytes.Equal(got.Payload, want.Payload) || !maps.Equal(got.Metadata, want.Metadata) {
			w.Errorf("the message in quarantine is %q %q %v", got.UUID, got.Payload, got.Metadata)
		}
		if entries[0].Reason != "permanent" {
			w.Errorf("the reason is %q", entries[0].Reason)
		}
	})
}

// If a handler fails because the process shuts down, neither an attempt nor a crash is
// counted. The next process handles the messages.
func TestShutdownCountsAsNoAttempt(t *testing.T) {
	eachMode(t, func(w *world, l life) {
		l.Hangs = true
		w.put(l, messages...)
		p := begin(w.T, l)
		select {
		case <-p.hanging:
		case <-p.ended:
			w.Fatal("the process ended")
		case <-time.After(patience):
			w.Error("no handler was called")
		}
		p.stop(w.T)
		if n := w.count(`effects`); n != 0 {
			w.Errorf("%d effects", n)
		}
		if n := w.count(`once_parked WHERE attempts > 0 OR crashes > 0 OR state NOT IN ('waiting', 'held')`); n != 0 {
			w.Errorf("attempts or crashes are counted for %d messages", n)
		}
		l.Hangs = false
		p = begin(w.T, l)
		kit.Eventually(w.T, patience, "everything is settled", func() bool {
			return w.settled() && w.count(`once_inbox`) == len(messages)
		})
		p.stop(w.T)
		if l.Versions == "newer" {
			return // the order of the messages is not fixed, so some may be stale
		}
		effectsOnce(w)
	})
}
