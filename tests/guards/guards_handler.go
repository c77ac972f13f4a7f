package main

// handlerGuards are those of what a handler may do to its transaction, and of
// what its failure means.
func handlerGuards() []guard {
	return []guard{
		{
			trap: 80, what: "calls that come to no outcome are charged",
			file: "retry/undecided.go", guard: "return u.calls >= maxUndecided || u.late", without: "return false",
			pkg: "tests/undecided", test: "TestEveryKindOfFailureIsCharged",
		},
		{
			trap: 83, what: "the claim's lock timeout is set back",
			file: "dedup/queries.go", guard: "RETURNING `+lockTimeoutBack),", without: "RETURNING true`),",
			pkg: "tests/undecided", test: "TestHandlersStatementsUseTheLockTimeout",
		},
		{
			trap: 86, what: "what has no room in the encoding is spelled out",
			file: "internal/parked/text.go", guard: "err = do(inASCII)", without: "_ = inASCII",
			pkg: "tests/databases", test: "TestTextThatTheDatabaseCannotStore",
		},
		{
			trap: 90, what: "a transaction that its handler ended is not committed",
			file: "dedup/commit.go", guard: "_, err := tx.ExecContext(context.WithoutCancel(ctx), i.sql.check)", without: "var err error",
			pkg: "tests/undecided", test: "TestHandlerThatEndsItsTransactionIsRefused",
		},
		{
			trap: 91, what: "a database that may lose commits is logged",
			file: "dedup/sweep.go", guard: "if err == nil && !durabilityLogged {", without: "if err == nil && durabilityLogged {",
			pkg: "tests/databases", test: "TestStartLogsADatabase",
		},
	}
}
