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
	}
}
