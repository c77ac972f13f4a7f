package observability

import (
	"database/sql"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
)

// documented is an instrument of docs/observability.md.
type documented struct {
	kind, unit, key string
	values          []string
	text            string
}

// series returns the names of the instrument's series.
func (d documented) series() []string {
	if d.key == "" {
		return []string{""}
	}
	var names []string
	for _, value := range d.values {
		names = append(names, d.key+"="+value)
	}
	return names
}

var (
	row  = regexp.MustCompile("(?m)^\\| `(once\\.[a-z_.]+)` \\| (\\w+), `([^`]+)` \\| (.*?) ?\\| (.+) \\|$")
	code = regexp.MustCompile("`([^`]+)`")
)

func page(t *testing.T) map[string]documented {
	t.Helper()
	text := kit.ReadFile(t, "../../docs/observability.md")
	found := map[string]documented{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		d := documented{kind: m[2], unit: m[3], text: m[5]}
		for i, word := range code.FindAllStringSubmatch(m[4], -1) {
			if i == 0 {
				d.key = word[1]
			} else {
				d.values = append(d.values, word[1])
			}
		}
		found[m[1]] = d
	}
	if named := strings.Count(string(text), "\n| `once."); named != len(found) {
		t.Fatalf("%d rows name an instrument, %d could be read", named, len(found))
	}
	return found
}

// Every instrument in docs/observability.md is exported, with the kind, unit and
// attributes that this page states. Every exported instrument is in the page. Every
// series changes when the event that it counts happens. With -short the test compares
// only the instruments of some parts with the page.
func TestInstrumentsMatchTheirPage(t *testing.T) {
	pages := page(t)
	seen := &seen{T: t, moved: map[string]map[string]bool{}, exported: map[string]*instrument{}}
	t.Run("outbox", func(t *testing.T) { moveOutbox(newWatch(t), seen) })
	t.Run("forwarder", func(t *testing.T) { kit.Long(t); moveForwarder(newWatch(t), seen) })
	t.Run("forwarder without its table", func(t *testing.T) { kit.Long(t); failForwarder(newWatch(t), seen) })
	t.Run("rabbit", func(t *testing.T) { moveRabbit(newWatch(t), seen) })
	t.Run("subscriber", func(t *testing.T) { moveSubscriber(newWatch(t), seen) })
	t.Run("poison", func(t *testing.T) { movePoison(newWatch(t), seen) })
	t.Run("rabbit in trouble", func(t *testing.T) { kit.Long(t); troubleRabbit(newWatch(t), seen) })
	t.Run("rabbit without rights", func(t *testing.T) { kit.Long(t); forbidRabbit(newWatch(t), seen) })
	t.Run("dedup", func(t *testing.T) { moveDedup(newWatch(t), seen) })
	t.Run("sequence", func(t *testing.T) { moveSequence(newWatch(t), seen) })
	t.Run("inbox", func(t *testing.T) { moveInbox(newWatch(t), seen) })
	t.Run("retry", func(t *testing.T) { kit.Long(t); moveRetry(newWatch(t), seen) })
	t.Run("breaker", func(t *testing.T) { kit.Long(t); moveBreaker(newWatch(t), seen) })
	t.Run("reconcile", func(t *testing.T) { moveReconcile(newWatch(t), seen) })
	if t.Failed() {
		return
	}

	for name, i := range seen.exported {
		if strings.HasPrefix(name, "messaging.") { // see TestTelemetryFollowsTheConventions
			continue
		}
		d, ok := pages[name]
		if !ok {
			t.Errorf("%s is exported and not documented", name)
			continue
		}
		if d.kind != i.kind || d.unit != i.unit {
			t.Errorf("%s is a %s in %s, the page says %s in %s", name, i.kind, i.unit, d.kind, d.unit)
		}
		if i.description == "" {
			t.Errorf("%s has no description", name)
		}
		for series := range i.series {
			if !slices.Contains(d.series(), series) {
				t.Errorf("%s has a series {%s}, which is not documented", name, series)
			}
		}
	}
	if testing.Short() {
		return
	}
	for name, d := range pages {
		for _, series := range d.series() {
			if !seen.moved[name][series] {
				t.Errorf("%s{%s} is documented and never moved", name, series)
			}
		}
	}
}

// seen records the instruments that any subtest has exported.
type seen struct {
	*testing.T

	exported map[string]*instrument
	moved    map[string]map[string]bool
}

func (s *seen) look(w *watch) {
	w.Helper()
	for name, i := range w.instruments() {
		if s.exported[name] == nil {
			s.exported[name] = i
			s.moved[name] = map[string]bool{}
		}
		for series, value := range i.series {
			s.exported[name].series[series] = value
			if value != 0 {
				s.moved[name][series] = true
			}
		}
	}
}

// zero checks that all series of the counters of one part exist before the
// first event.
func (w *watch) zero(prefix string) {
	w.Helper()
	all := w.instruments()
	for name, d := range page(w.T) {
		if d.kind != "counter" || !strings.HasPrefix(name, prefix) {
			continue
		}
		i := all[name]
		if i == nil {
			w.Errorf("%s does not exist from the start", name)
			continue
		}
		if got, want := slices.Sorted(maps.Keys(i.series)), slices.Sorted(slices.Values(d.series())); !slices.Equal(got, want) {
			w.Errorf("%s has %q from the start, want %q", name, got, want)
		}
	}
}

func moveOutbox(w *watch, seen *seen) {
	db, box := w.database(), w.outbox()
	w.zero("once.outbox.")
	w.publish(w.Context(), db, box, "t", message.NewMessage("1", nil), message.NewMessage("2", nil))
	err := box.InTx(w.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
		if err := events.Publish("t", message.NewMessage("", nil)); !errors.Is(err, outbox.ErrInvalid) {
			w.Errorf("an empty id: %v", err)
		}
		if _, err := tx.ExecContext(w.Context(), "SELECT 1/0"); err == nil {
			w.Error("dividing by zero worked")
		}
		return events.Publish("t", message.NewMessage("3", nil))
	})
	if err == nil {
		w.Error("publishing in a failed transaction worked")
	}
	for outcome, want := range map[string]float64{"stored": 2, "refused": 1, "failed": 1} {
		w.want(want, "once.outbox.published", "once.outcome="+outcome)
	}
	w.want(1, "once.outbox.publish.duration", "")
	seen.look(w)
}

// moveForwarder makes the forwarder publish messages, so that every outcome of a
// publish happens.
func moveForwarder(w *watch, seen *seen) {
	db, box := w.database(), w.outbox()
	var (
		mu      sync.Mutex
		once    = map[string]bool{}
		release = make(chan struct{})
	)
	first := func(id string) bool {
		mu.Lock()
		defer mu.Unlock()
		defer func() { once[id] = true }()
		return !once[id]
	}
	pub := &scripted{answer: func(topic string, msg *message.Message) error {
		switch {
		case topic == "slow":
			<-release
		case topic == "stuck", topic == "unknown" && first(msg.UUID):
			return outcomeError("unknown")
		case topic == "refused", topic == "unacceptable", topic == "unavailable" && first(msg.UUID):
			return outcomeError(topic)
		}
		return nil
	}}
	w.Cleanup(pub.running.Wait)
	w.forward(db, pub, forwarder.Config{
		MaxAttempts: 2, StallTimeout: 500 * time.Millisecond,
		Backoff: func(int) time.Duration { return 10 * time.Second }, // long enough to be observed
	})
	w.awaitValue(64, "once.forwarder.slots", "")
	w.zero("once.forwarder.")

	// A message whose confirm takes long.
	w.publish(w.Context(), db, box, "slow", message.NewMessage("slow", nil))
	w.awaitValue(1, "once.forwarder.in_flight", "")
	seen.look(w)
	w.awaitValue(1, "once.forwarder.stalled", "")
	close(release)

	for _, topic := range []string{"refused", "unacceptable", "unavailable", "unknown", "fine"} {
		msg := message.NewMessage(topic, []byte("body"))
		outbox.SetOrderingKey(msg, topic)
		next := message.NewMessage(topic+" next", []byte("body"))
		outbox.SetOrderingKey(next, topic)
		w.publish(w.Context(), db, box, topic, msg)
		w.publish(w.Context(), db, box, "fine", next)
	}
	w.awaitValue(1, "once.forwarder.blocked_keys", "")
	w.awaitValue(0.5, "once.forwarder.lag", "") // the next message of the key waits
	w.awaitValue(1, "once.forwarder.pending", "")
	seen.look(w)
	w.awaitValue(1, "once.forwarder.dead", "once.reason=exhausted")
	w.awaitValue(2, "once.forwarder.dead_letters", "")

	kit.Exec(w, db, `INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'nobody', 'ann', 'a test')`)
	w.awaitValue(1, "once.forwarder.pauses", "")
	seen.look(w)

	// One topic gets no confirms, while other topics get them.
	w.publish(w.Context(), db, box, "stuck", message.NewMessage("stuck", nil))
	w.eventually("a message waits for its topic", func() bool {
		w.publish(w.Context(), db, box, "fine", message.NewMessage("witness", nil))
		return w.value("once.forwarder.deferred", "once.reason=unknown") > 0
	})
	seen.look(w)
	for name, want := range map[string]float64{"refused": 2, "unacceptable": 1, "unavailable": 1} {
		w.want(want, "once.forwarder.published", "once.outcome="+name)
	}
	w.want(1, "once.forwarder.deferred", "once.reason=refused")
	if got, want := w.value("once.forwarder.confirm.duration", ""), w.value("once.forwarder.published", "once.outcome=confirmed"); got > want {
		w.Errorf("%v durations of %v confirms", got, want)
	}
}

// failForwarder renames the table while a message is in flight.
func failForwarder(w *watch, seen *seen) {
	db, box := w.database(), w.outbox()
	release := make(chan struct{})
	pub := &scripted{answer: func(string, *message.Message) error { <-release; return nil }}
	w.Cleanup(pub.running.Wait)
	end := w.forward(db, pub, forwarder.Config{})
	w.publish(w.Context(), db, box, "t", message.NewMessage("1", nil))
	w.awaitValue(1, "once.forwarder.in_flight", "")
	w.exec(db, `ALTER TABLE once_outbox RENAME TO elsewhere`)
	close(release)
	w.awaitValue(1, "once.forwarder.read.duration", "once.outcome=failed")
	w.awaitValue(1, "once.forwarder.settle.duration", "once.outcome=failed")
	w.eventually("lag is not known", func() bool { return w.value("once.forwarder.lag", "") == -1 })
	w.exec(db, `ALTER TABLE elsewhere RENAME TO once_outbox`)
	w.awaitValue(0, "once.forwarder.lag", "")
	seen.look(w)
	end()
	if left := w.value("once.forwarder.slots", ""); left != -1 {
		w.Errorf("slots are still observed after Run: %v", left)
	}
}
