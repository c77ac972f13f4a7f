package failpoints

import (
	"slices"
	"testing"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/testkit"
)

// freezes contains, for each scenario, the points at which a process holds locks that
// another process needs.
var freezes = map[string][]string{
	"way":         {"forwarder/enrolled:2", "forwarder/slots-taken", "forwarder/rows-deleted", "dedup/claimed"},
	"redelivered": {"parked/claimed", "parked/removed"},
	"failing":     {"parked/quarantined"},
	"durable":     {"parked/delivered"},
	"batches":     {"dedup/batch-claimed"},
	"versions":    {"sequence/written"},
	"refused":     {"forwarder/attempt-charged", "forwarder/key-blocked"},
	"dying":       {"forwarder/dead-row-written"},
}

// shortFreezes contains the scenarios that run with -short: a forwarder, a consumer and a
// durable consumer with batches hold the locks.
var shortFreezes = []string{"way", "redelivered", "batches"}

// Trap 18. A process is stopped in the middle of a transaction, as if its machine were
// paused or its network cut. It continues only after another process has done all the
// work.
//
// With -short it runs three scenarios, at one point each. TestKilledAt runs more.
func TestFrozenAt(t *testing.T) {
	t.Parallel()
	program, broker := testkit.Program(t, "failpoints"), testkit.Rabbit(t)
	names := map[string]bool{}
	for _, s := range scenarios {
		names[s.name] = true
		for i, point := range freezes[s.name] {
			t.Run(s.name+"/"+point, func(t *testing.T) {
				t.Parallel()
				if i > 0 || !slices.Contains(shortFreezes, s.name) {
					testkit.Long(t)
				}
				w := newWorld(t, program, s, broker)
				w.life.Frozen = true
				w.prepare()
				p := begin(t, program, w.life, point, failpoint.Freezes+"=yes")
				p.frozen(t)
				if s.after != nil {
					s.after(&w.life)
				}
				w.finish()
				p.thaw(t)
				p.stop(t)
				w.finish() // the frozen process may have nacked messages, or handled some by mistake
				w.audit()
			})
		}
	}
	for name := range freezes {
		if !names[name] {
			t.Errorf("there is no scenario %s", name)
		}
	}
}
