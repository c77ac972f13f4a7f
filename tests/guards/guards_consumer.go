package main

// consumerGuards are those of the subscriber, the inbox, retries and the
// quarantine.
func consumerGuards() []guard {
	return []guard{
		{
			trap: 48, what: "the inbox is asked before a message is given up that was killed",
			file: "retry/feed.go", guard: "applied, err := f.store.Applied(ctx, c.Claim)", without: "applied, err := false, error(nil)",
			pkg: "retry", test: "TestTrap48WhatWasApplied",
		},
		{
			trap: 48, what: "crashes have a budget",
			file: "retry/feed.go", guard: "case c.Crashes > f.config.CrashBudget:", without: "case c.Crashes > 1<<30:",
			pkg: "retry", test: "TestTrap48AMessageThatKills",
		},
	}
}
