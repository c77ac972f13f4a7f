package main

// parkedGuards are those of traps 48 to 78: what becomes of messages that fail.
func parkedGuards() []guard {
	return []guard{
		{
			trap: 82, what: "a key stays while a message that may run has it",
			file: "dedup/queries.go", guard: "WHERE p.dedup_key = i.message_id AND", without: "WHERE p.dedup_key = '-' AND",
			pkg: "dedup", test: "TestKeyIsKeptWhile/sqlite",
		},
		{
			trap: 82, what: "keys stay while it is not known which ones parked messages have",
			file: "dedup/keys.go", guard: "expired.keptConsumers = append(expired.keptConsumers, consumer)", without: "expired.keptConsumers = nil",
			pkg: "dedup", test: "TestSweepWithoutKeyFunction/sqlite",
		},
		{
			trap: 89, what: "a consumer name has one handler in a process",
			file:    "internal/parked/uses.go",
			guard:   "if other.runs() && (!shared || !other.shared) {",
			without: "if other.runs() && shared && !other.shared {",
			pkg:     "retry", test: "TestSecondHandlerWithSameConsumerNameDoesNotStart/sqlite",
		},
		{
			trap: 84, what: "a consumer stays registered for the embedded transport",
			file:    "internal/parked/consumers.go",
			guard:   "SET embedded = c.embedded OR excluded.embedded",
			without: "SET embedded = excluded.embedded",
			pkg:     "internal/parked", test: "TestRegistrationKeepsTheEmbeddedTransport/sqlite",
		},
		{
			trap: 48, what: "the inbox is asked before a message is given up that was killed",
			file: "retry/quarantine.go", guard: "applied, err := f.store.Applied(ctx, c)", without: "applied, err := false, error(nil)",
			pkg: "retry", test: "TestTrap48AppliedMessageIsNotQuarantined/sqlite",
		},
		{
			trap: 48, what: "a claim of unknown outcome is handed back",
			file: "retry/claim.go", guard: "f.unknown = append(f.unknown, c.Claim)", without: "f.unknown = nil",
			pkg: "retry", test: "TestTrap48ClaimWithUnknownOutcomeIsNoCrash",
		},
		{
			trap: 48, what: "crashes have a budget",
			file: "retry/claim.go", guard: "case c.Crashes > f.config.CrashBudget:", without: "case c.Crashes > 1<<30:",
			pkg: "retry", test: "TestTrap48MessageOverCrashBudgetIsQuarantined/sqlite",
		},
		{
			trap: 48, what: "a crash is charged before the handler runs",
			file:    "internal/parked/queries_claim.go",
			guard:   `OneMore("crashes")`,
			without: `"crashes"`,
			pkg:     "retry", test: "TestTrap48RedeliveredMessageIsParkedBeforeItsHandlerRuns",
		},
		{
			trap: 48, what: "what is redelivered is set aside",
			file:    "retry/middleware.go",
			guard:   `msg.Metadata[meta.Redelivered] == "true"`,
			without: `msg.Metadata[meta.Redelivered] == "never"`,
			pkg:     "retry", test: "TestTrap48RedeliveredMessageIsParkedBeforeItsHandlerRuns",
		},
		{
			trap: 48, what: "a claim that ends in quarantine is no crash",
			file: "internal/parked/queries.go", guard: "token = NULL, crashes = crashes - 1, attempts", without: "token = NULL, attempts",
			pkg: "poison", test: "TestTrap48QuarantinedClaim",
		},
		{
			trap: 48, what: "a commit under way is waited for",
			file: "internal/parked/claim.go",
			guard: `		result, err := tx.ExecContext(ctx, s.sql.enter, c.ID)
		if err != nil {
			return err
		}
		if fresh, err := result.RowsAffected(); err != nil || fresh > 0 {
			return cmp.Or(err, errRollback)
		}
`,
			without: "",
			pkg:     "retry", test: "TestTrap48InboxLookupWaitsForPendingCommit",
		},
		{
			trap: 48, what: "no attempt is begun when the lease has ended",
			file: "retry/middleware.go", guard: "if err := a.delivery.CheckLease(); err != nil {",
			without: "if err := a.delivery.CheckLease(); err != nil && a.ctx == nil {",
			pkg:     "retry", test: "TestTrap48HandlerIsNotCalledAfterLeaseEnd",
		},
		{
			trap: 48, what: "nothing is applied when the lease has ended",
			file: "dedup/inbox.go", guard: "if err := parked.DeliveryOf(ctx).CheckLease(); err != nil {",
			without: "if err := parked.DeliveryOf(ctx).CheckLease(); err != nil && ctx == nil {",
			pkg:     "retry", test: "TestTrap48MessageIsNotAppliedAfterLeaseEnd/alone/sqlite",
		},
		{
			trap: 48, what: "nothing of a batch is applied when its lease has ended",
			file: "dedup/batch_claim.go", guard: "if r.finishLost() {", without: "if r.items == nil && r.finishLost() {",
			pkg: "retry", test: "TestTrap48MessageIsNotAppliedAfterLeaseEnd/in_a_batch/sqlite",
		},
		{
			trap: 49, what: "suspects are claimed one at a time",
			file: "retry/claim.go", guard: "sel.Crashed, sel.Limit = true, 1", without: "sel.Crashed = true",
			pkg: "retry", test: "TestTrap49CrashedMessagesRunAlone",
		},
		{
			trap: 49, what: "nothing is claimed beside a suspect",
			file: "retry/isolation.go", guard: "(g.isolated || g.waiting > 0)", without: "g.waiting > 0",
			pkg: "retry", test: "TestTrap49CrashedMessageIsAloneInTheProcess",
		},
		{
			trap: 49, what: "a suspect waits for its neighbours",
			file: "retry/isolation.go",
			guard: `	if g.inFlight > 0 {
		return false
	}
	g.inFlight, g.isolated`,
			without: `	g.inFlight, g.isolated`,
			pkg:     "retry", test: "TestTrap49CrashedMessageWaitsForMessagesInFlight",
		},
		{
			trap: 50, what: "an envelope is bytes, not text",
			file: "internal/parked/envelope.go",
			guard: `	b = binary.AppendUvarint(b, uint64(len(s)))
`,
			without: `	s = Clean(s, 1<<30)
	b = binary.AppendUvarint(b, uint64(len(s)))
`,
			pkg: "internal/parked", test: "TestTrap50",
		},
		{
			trap: 51, what: "nothing is remembered without a name",
			file: "dedup/identity.go", guard: `if consumer == "" {`, without: "if i == nil {",
			pkg: "dedup", test: "TestMessageWithoutAConsumerName",
		},
		{
			trap: 51, what: "messages are remembered under the name that does not change",
			file: "dedup/inbox.go", guard: "consumer, err := i.consumer(parked.DeliveryOf(ctx))",
			without: "consumer, err := message.HandlerNameFromCtx(ctx), error(nil)",
			pkg:     "retry", test: "TestTrap51RenamedHandlerKeepsItsInbox",
		},
		{
			trap: 72, what: "the inbox has the name under which retry and poison look into it",
			file: "dedup/inbox.go", guard: "if d.Subscribed && d.Consumer != name {", without: `if d.Subscribed && d.Consumer == "" {`,
			pkg: "retry", test: "TestTrap72InboxWithOtherConsumerNameIsRefused/sqlite",
		},
		{
			trap: 52, what: "replays of a consumer exclude each other",
			file:    "poison/queries_replay.go",
			guard:   "WHERE state = 'running' AND lease_until > {now} AND id <> $2",
			without: "WHERE 1 = 0 AND id <> $2",
			pkg:     "poison", test: "TestTrap52OneOfSimultaneous",
		},
		{
			trap: 52, what: "a replay that is being entered is waited for",
			file: "poison/replay_lease.go", guard: `if t.sql.replays.lock != "" {`, without: `if t.sql.replays.lock == "none" {`,
			pkg: "poison", test: "TestTrap52NewReplayWaits",
		},
		{
			trap: 52, what: "a lease that runs out while it waits is not extended",
			file: "poison/queries_replay.go", guard: "clock := `clock_timestamp()`", without: "clock := `now()`",
			pkg: "poison", test: "TestTrap52LeaseThatEnds",
		},
		{
			trap: 53, what: "a row is claimed for its consumer alone",
			file:    "internal/parked/queries_claim.go",
			guard:   "crashes = 0 AND consumer = $1 AND topic = $2",
			without: "crashes = 0 AND $1 <> '' AND topic = $2",
			pkg:     "poison", test: "TestTrap53",
		},
		{
			trap: 54, what: "a failure in a shutdown is not charged",
			file: "retry/middleware.go", guard: "if a.delivery.ShuttingDown(a.ctx) {", without: "if false {",
			pkg: "retry", test: "TestTrap54FailureDuringShutdownIsNotCharged",
		},
		{
			trap: 54, what: "the end of the subscription does not cancel its messages",
			file: "retry/fetcher.go",
			guard: `	ctx = context.WithoutCancel(ctx)
`,
			without: "",
			pkg:     "retry", test: "TestTrap54CancelledRouterLetsParkedMessagesFinish",
		},
		{
			trap: 54, what: "a failure in a shutdown is not quarantined",
			file: "poison/middleware.go", guard: " || delivery.ShuttingDown(ctx)", without: "",
			pkg: "poison", test: "TestTrap54",
		},
		{
			trap: 55, what: "a try that failed ends its transaction",
			file: "dedup/inbox.go",
			guard: `produced, err := h(msg)
`,
			without: `produced, err := h(msg)
	if err != nil {
		produced, err = h(msg)
	}
`,
			pkg: "retry", test: "TestTrap55",
		},
		{
			trap: 56, what: "the delay follows from the round alone",
			file: "retry/middleware.go", guard: "policy.backoff().Jittered(a.rounds)",
			without: "policy.backoff().Jittered(a.rounds + len(a.config.Classes))",
			pkg:     "retry", test: "TestTrap56",
		},
		{
			trap: 57, what: "each try has the context of the delivery",
			file: "retry/middleware.go",
			guard: `		a.ctx, a.instruments.traced(), a.delivery.Consumer, a.delivery.Topic, a.attempts+1, a.msg)
	a.msg.SetContext(parked.WithTried(ctx, a.msg, a.failedBefore))
	produced, err = disposition.Call(h, a.msg)
	a.msg.SetContext(a.ctx) // the handler may have set a cancelled context
`,
			without: `		a.msg.Context(), a.instruments.traced(), a.delivery.Consumer, a.delivery.Topic, a.attempts+1, a.msg)
	a.msg.SetContext(parked.WithTried(ctx, a.msg, a.failedBefore))
	produced, err = disposition.Call(h, a.msg)
`,
			pkg: "retry", test: "TestTrap57",
		},
		{
			trap: 57, what: "each try has the message as it came",
			file: "retry/middleware.go",
			guard: `parked.Restore(a.msg, a.original)
`,
			without: "",
			pkg:     "retry", test: "TestTrap57",
		},
		{
			trap: 57, what: "a message outlives its subscription's context",
			file: "rabbit/subscriber_subscription.go",
			guard: `context.WithoutCancel(ctx),
`,
			without: `ctx,
`,
			pkg: "rabbit", test: "TestTrap57",
		},
		{
			trap: 58, what: "a panic rolls back in the inbox",
			file:    "dedup/inbox.go",
			guard:   "defer release() // deferred, because h may panic",
			without: "defer func() { _ = tx.Commit(); release() }()",
			pkg:     "dedup", test: "TestPanicOfAHandlerRollsBack",
		},
		{
			trap: 58, what: "a panic rolls back everywhere else",
			file: "internal/dialect/tx.go",
			guard: `defer release()
`,
			without: `defer func() { _ = tx.Commit(); release() }()
`,
			pkg: "internal/dialect", test: "TestTrap58",
		},
		{
			trap: 59, what: "a failed try is rolled back",
			file: "dedup/errors.go", guard: "lost := tx.Rollback()", without: "lost := tx.Commit()",
			pkg: "retry", test: "TestTrap59WritesOfFailedAttemptAreNotCommitted/sqlite",
		},
		{
			trap: 60, what: "errors lose their credentials",
			file:    "rabbit/redact.go",
			guard:   "if safe := redactText(text); safe != text {",
			without: `if safe := redactText(text); safe == "" {`,
			pkg:     "rabbit", test: "TestTrap60_NoCredentialsInWhat",
		},
		{
			trap: 60, what: "what cannot be parsed is not quoted",
			file: "rabbit/connection_config.go", guard: "errs = append(errs, uriError(config.AmqpURI))", without: "errs = append(errs, err)",
			pkg: "rabbit", test: "TestTrap60_NoCredentialsInErrors",
		},
		{
			trap: 60, what: "logs have sizes, not payloads",
			file: "rabbit/subscriber_delivery.go", guard: `"size": len(raw.Body)`, without: `"size": string(raw.Body)`,
			pkg: "tests/observability", test: "TestConsumersRecordNoSecrets",
		},
		{
			trap: 65, what: "a panic is the error of its try",
			file: "internal/disposition/panic.go", guard: "value := recover()", without: "value := any(nil)",
			pkg: "retry", test: "TestTrap65PanicIsRetriedAndQuarantined/sqlite",
		},
		{
			trap: 69, what: "text columns get valid text",
			file:    "internal/parked/text.go",
			guard:   `text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")`,
			without: "text = strings.Clone(text)",
			pkg:     "poison", test: "TestTrap69",
		},
		{
			trap: 69, what: "text columns get short text",
			file: "internal/parked/text.go", guard: "if len(text) <= limit {", without: "if len(text) <= 1<<30 {",
			pkg: "poison", test: "TestTrap69",
		},
		{
			trap: 69, what: "so do those of many messages",
			file: "internal/parked/batch.go", guard: "r.ids = append(r.ids, Clean(msg.UUID, MaxName))", without: "r.ids = append(r.ids, msg.UUID)",
			pkg: "internal/parked", test: "TestTrap69",
		},
		{
			trap: 70, what: "an ack alone does not resolve",
			file: "retry/deliver.go", guard: "case acked && (claim.Handled() || !claim.Managed()):", without: "case acked:",
			pkg: "retry", test: "TestTrap70AckWithoutSuccessDoesNotResolve",
		},
		{
			trap: 71, what: "what is undecided is not quarantined",
			file: "poison/middleware.go", guard: "v.Kind == disposition.Undecided || ", without: "",
			pkg: "poison", test: "TestTrap71",
		},
		{
			trap: 72, what: "a discarded message leaves a tombstone",
			file:    "poison/discard.go",
			guard:   `err == nil && msg.UUID != "" && msg.UUID == messageID`,
			without: "err == nil && msg == nil",
			pkg:     "poison", test: "TestTrap72DiscardedMessageDoesNot",
		},
		{
			trap: 72, what: "an edited message takes the place of the old one",
			file:    "poison/edit.go",
			guard:   `t.discardIn(ctx, tx, act, "edit", old.ID)`,
			without: `t.record(ctx, tx, act, "edit", old.ID, old.Consumer, old.MessageID)`,
			pkg:     "poison", test: "TestTrap72EditedMessage",
		},
		{
			trap: 72, what: "a replay does not make the inbox forget",
			file: "poison/replay_table.go", guard: "if r.Plan.Force {", without: "if r != nil {",
			pkg: "poison", test: "TestTrap72ReplayOfHandled",
		},
		{
			trap: 72, what: "a forced replay has the inbox forget what it runs again, and no more",
			file: "poison/replay_table.go", guard: "changed := t.dialect.List(due)", without: "changed := t.dialect.List(ids)",
			pkg: "poison", test: "TestTrap72ForcedReplay",
		},
		{
			trap: 73, what: "an outage holds the message",
			file: "internal/parked/persist.go", guard: "if time.Now().After(deadline) ||", without: "if time.Now().Before(deadline) ||",
			pkg: "retry", test: "TestTrap73",
		},
		{
			trap: 78, what: "a duplicate waits for a frozen handler for a bounded time",
			file:    "dedup/queries.go",
			guard:   "|| '`+millis(c.LockTimeout)+`', true)",
			without: "|| '0', true)",
			pkg:     "dedup", test: "TestDuplicateOfAFrozenHandler",
		},
		{
			trap: 78, what: "a frozen handler loses its transaction",
			file:    "dedup/queries.go",
			guard:   "= %d`, c.IdleTimeout.Milliseconds())",
			without: "= %d`, 0*c.IdleTimeout.Milliseconds())",
			pkg:     "dedup", test: "TestFrozenHandlerLosesItsTransaction",
		},
	}
}
