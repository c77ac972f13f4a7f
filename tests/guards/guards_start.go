package main

// startGuards are those of the checks that a router makes when it starts, and of
// stopping.
func startGuards() []guard {
	return []guard{
		{
			trap: 36, what: "single middlewares: the inbox remembers for longer than retry tries",
			file: "checks.go", guard: "inbox.Retention < retries.LongestDelay {", without: "inbox.Retention < 0 {",
			pkg: ".", test: "TestStartChecksTheHandlers",
		},
		{
			trap: 37, what: "a handler that publishes has an outbox when the router starts",
			file: "checks.go", guard: `if h.PublishTopic == "" ||`, without: `if true ||`,
			pkg: ".", test: "TestStartChecksTheHandlers",
		},
		{
			trap: 55, what: "the order of the middleware is checked when the router starts",
			file: "checks.go", guard: "slices.Index(order, outer) > slices.Index(order, inner)", without: "len(order) == 0",
			pkg: ".", test: "TestStartChecksTheHandlers",
		},
		{
			trap: 89, what: "handlers with one consumer's name are an error of the start",
			file: "checks.go", guard: "if !taken {", without: "if taken = false; !taken {",
			pkg: ".", test: "TestStartChecksTheHandlers",
		},
		{
			trap: 54, what: "a part that hangs leaves the others their time to stop",
			file: "run.go", guard: "left /= 2", without: "left *= 1",
			pkg: ".", test: "TestRunStopsWithinItsGrace",
		},
	}
}
