package failpoints

import (
	"errors"
	"time"

	"github.com/watermill-once/once/internal/parked"
)

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
		err := w.parked.Park(w.Context(), &parked.Delivery{Consumer: orders, Topic: orders}, w.life.message(n, id),
			parked.Failure{Err: errors.New("it failed before"), Attempts: 1}, time.Hour)
		if err != nil {
			w.Fatal(err)
		}
	}
}
