package main

// orderGuards are those of versions and of the order of keys.
func orderGuards() []guard {
	return []guard{
		{
			trap: 79, what: "the first version is not whichever comes first",
			file:    "sequence/decide.go",
			guard:   "case c.Policy == IgnoreOlder, version == c.before(l)+1:",
			without: "case c.Policy == IgnoreOlder, !l.known, version == c.before(l)+1:",
			pkg:     "sequence", test: "TestSchedules",
		},
		{
			trap: 79, what: "a version that was passed and not applied is not ignored",
			file: "sequence/decide.go", guard: "			return late\n", without: "			return stale\n",
			pkg: "sequence", test: "TestSchedules",
		},
		{
			trap: 79, what: "those behind a gap are not taken for applied",
			file: "sequence/decide.go", guard: "case !l.known || version != l.version+1 && !filled:", without: "case !l.known:",
			pkg: "sequence", test: "TestSchedules",
		},
		{
			trap: 85, what: "who locks a key has another one wait that locks it",
			file: "outbox/lock.go", guard: "SELECT pg_advisory_xact_lock(key)", without: "SELECT key",
			pkg: "outbox", test: "TestEventsOfAKeyAreInTheOrder",
		},
		{
			trap: 85, what: "a lock of a key ends with its transaction",
			file: "outbox/lock.go", guard: "SELECT pg_advisory_xact_lock(key)", without: "SELECT pg_advisory_lock(key)",
			pkg: "outbox", test: "TestKeysAreLockedInOneOrder",
		},
		{
			trap: 85, what: "keys are locked in one order",
			file: "outbox/lock.go", guard: "slices.Sort(locks)", without: "_ = slices.Sort[[]int64]",
			pkg: "outbox", test: "TestKeysAreLockedInOneOrder",
		},
		{
			trap: 85, what: "oncetest finds who publishes before it locks",
			file: "oncetest/order.go", guard: "earlier.key == later.key &&", without: "earlier.key != later.key &&",
			pkg: "oncetest", test: "TestServiceThatPublishesBefore",
		},
	}
}
