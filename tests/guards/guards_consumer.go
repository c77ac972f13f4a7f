package main

// consumerGuards are those of the subscriber, the inbox, retries and the
// quarantine.
func consumerGuards() []guard {
	return []guard{
		{
			trap: 34, what: "a message is entered before it is handled",
			file: "dedup/inbox.go",
			guard: `	for _, id := range identities {
		if err := i.claim(ctx, tx, id, consumer, parked.Tenant(msg)); err != nil {
			return err
		}
	}
	if err := i.handle(ctx, tx, msg, consumer, h); err != nil {
		release() // the pool may have no other connection to look with
		return i.lostUnderHandler(ctx, err)
	}
`,
			without: `	if err := i.handle(ctx, tx, msg, consumer, h); err != nil {
		release() // the pool may have no other connection to look with
		return i.lostUnderHandler(ctx, err)
	}
	for _, id := range identities {
		if err := i.claim(ctx, tx, id, consumer, parked.Tenant(msg)); err != nil {
			return err
		}
	}
`,
			pkg: "dedup", test: "TestTrap34TwoCopiesAtOnce",
		},
		{
			trap: 35, what: "the entry and the effect are one transaction",
			file:  "dedup/inbox.go",
			guard: "if err := i.handle(ctx, tx, msg, consumer, h); err != nil {",
			without: `if err := tx.Commit(); err != nil {
		return err
	}
	if tx, release, err = dialect.Begin(ctx, i.db, nil); err != nil {
		return err
	}
	defer release()
	if err := i.handle(ctx, tx, msg, consumer, h); err != nil {`,
			pkg: "dedup", test: "TestTrap35",
		},
		{
			trap: 36, what: "the inbox remembers for longer than retry tries",
			file: "consumer.go", guard: ", config.Retry.LongestDelay())", without: ")",
			pkg: ".", test: "TestTrap36",
		},
		{
			trap: 36, what: "it remembers for longer than the longest way back",
			file: "dedup/config.go", guard: "if c.Retention < c.LongestWayBack {", without: "if c.Retention < 0 {",
			pkg: "dedup", test: "TestTrap36RetentionIsNot",
		},
		{
			trap: 36, what: "it remembers what waits or is in quarantine",
			file: "dedup/queries.go", guard: "AND p.state NOT IN ", without: "AND false AND p.state NOT IN ",
			pkg: "dedup", test: "TestTrap36WhatMayComeBack",
		},
		{
			trap: 36, what: "entries of a replay stay until it has finished",
			file: "dedup/queries.go", guard: "WHERE r.id = p.replay_id AND", without: "WHERE false AND r.id = p.replay_id AND",
			pkg: "poison", test: "TestTrap36",
		},
		{
			trap: 37, what: "produced messages are stored in the handler's transaction",
			file:    "dedup/inbox.go",
			guard:   "err = i.store(tx, consumer, all)",
			without: "err = i.dialect.Write(ctx, i.db, func(tx *sql.Tx) error { return i.store(tx, consumer, all) })",
			pkg:     "dedup", test: "TestTrap37ProducedMessagesOf",
		},
		{
			trap: 38, what: "a failure is not remembered",
			file: "dedup/inbox.go", guard: "release() // the pool may have no other connection to look with", without: "_ = tx.Commit()",
			pkg: "retry", test: "TestTrap38",
		},
		{
			trap: 39, what: "an empty id is refused",
			file: "dedup/identity.go", guard: `case id == "":`, without: `case id == "" && id != "":`,
			pkg: "dedup", test: "TestTrap39UnusableIDs",
		},
		{
			trap: 40, what: "payloads of one id are compared",
			file: "dedup/inbox.go", guard: "case !same:", without: "case false:",
			pkg: "dedup", test: "TestTrap40TheSameID",
		},
		{
			trap: 41, what: "headers of any type are read as text",
			file:  "rabbit/marshaler.go",
			guard: "msg.Metadata[key] = headerText(value)",
			without: `text, ok := value.(string)
			if !ok {
				return nil, amqp091.ErrSyntax
			}
			msg.Metadata[key] = text`,
			pkg: "rabbit", test: "TestTrap41_HeadersThatTheBrokerWrote",
		},
		{
			trap: 41, what: "what cannot be decoded is marked",
			file:    "rabbit/delivery.go",
			guard:   `ctx = verdicts.WithUndecodable(ctx, fmt.Errorf("rabbit: the message cannot be decoded: %w", err))`,
			without: "_ = verdicts.WithUndecodable",
			pkg:     "rabbit", test: "TestTrap41_Undecodable",
		},
		{
			trap: 42, what: "a nacked message rests before it goes back",
			file: "rabbit/delivery.go",
			guard: `d.rest()
`,
			without: `_ = d.pause
`,
			pkg: "rabbit", test: "TestTrap42_NackedMessagesComeBack/counted_here",
		},
		{
			trap: 43, what: "storing outlives the message's context",
			file:    "internal/parked/persist.go",
			guard:   "context.WithTimeout(context.WithoutCancel(ctx), oneTry)",
			without: "context.WithTimeout(ctx, oneTry)",
			pkg:     "poison", test: "TestTrap43AnExpired",
		},
		{
			trap: 43, what: "no ack before the entry is stored",
			file: "poison/middleware.go",
			guard: `end("", err)
		return err`,
			without: `end("", err)
		return nil`,
			pkg: "poison", test: "TestTrap43WhatCannotBeStored",
		},
		{
			trap: 43, what: "a copy that is refused does not undo the entry",
			file: "poison/copy.go",
			guard: `_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT once_copy")
`,
			without: "",
			pkg:     "poison", test: "TestTrap43ACopy",
		},
		{
			trap: 44, what: "the end of the deliveries is noticed",
			file:  "rabbit/subscription.go",
			guard: "return in.over()",
			without: `in.deliveries = nil
				continue`,
			pkg: "rabbit", test: "TestTrap44_QueueIsDeleted/classic",
		},
		{
			trap: 44, what: "what is in flight can be acked after a cancel",
			file: "rabbit/subscription.go", guard: "if in.unanswered > 0 {", without: "if false {",
			pkg: "rabbit", test: "TestTrap44_CancelledConsumer",
		},
		{
			trap: 45, what: "an ack goes to the channel of its message",
			file: "rabbit/subscription.go",
			guard: `sub.settle(d)
		case`,
			without: `d.in, d.raw.Acknowledger = in, in.channel
			sub.settle(d)
		case`,
			pkg: "rabbit", test: "TestTrap45",
		},
		{
			trap: 46, what: "a consumer timeout that is too short is reported",
			file: "rabbit/budget.go", guard: "timeout <= stay {", without: "timeout <= 0*stay {",
			pkg: "rabbit", test: "TestTrap46_Limits",
		},
		{
			trap: 46, what: "what is held is handed back in time",
			file:    "internal/parked/persist.go",
			guard:   "time.Now().After(deadline) ||",
			without: "time.Now().After(deadline.Add(time.Hour)) ||",
			pkg:     "retry", test: "TestTrap46WhatIsHeld/sqlite",
		},
		{
			trap: 47, what: "the broker's own delivery limit is known",
			file: "rabbit/budget.go", guard: "case major >= 4:", without: "case false:",
			pkg: "rabbit", test: "TestTrap47TheDeliveryLimit",
		},
		{
			trap: 48, what: "the inbox is asked before a message is given up that was killed",
			file: "retry/feed.go", guard: "applied, err := f.store.Applied(ctx, c.Claim)", without: "applied, err := false, error(nil)",
			pkg: "retry", test: "TestTrap48WhatWasApplied/sqlite",
		},
		{
			trap: 48, what: "crashes have a budget",
			file: "retry/feed.go", guard: "case c.Crashes > f.config.CrashBudget:", without: "case c.Crashes > 1<<30:",
			pkg: "retry", test: "TestTrap48AMessageThatKills/sqlite",
		},
		{
			trap: 48, what: "a crash is charged before the handler runs",
			file:    "internal/parked/queries.go",
			guard:   "due_at = {after $5}, crashes = crashes + 1",
			without: "due_at = {after $5}, crashes = crashes",
			pkg:     "retry", test: "TestTrap48ARedelivered",
		},
		{
			trap: 48, what: "what is redelivered is set aside",
			file:    "retry/middleware.go",
			guard:   `msg.Metadata[meta.Redelivered] == "true"`,
			without: `msg.Metadata[meta.Redelivered] == "never"`,
			pkg:     "retry", test: "TestTrap48ARedelivered",
		},
		{
			trap: 48, what: "a commit under way is waited for",
			file: "internal/parked/claim.go",
			guard: `		result, err := tx.ExecContext(ctx, s.sql.enter, c.ID)
		if err != nil {
			return err
		}
		if fresh, err := result.RowsAffected(); err != nil || fresh > 0 {
			return cmp.Or(err, errOnlyLooked)
		}
`,
			without: "",
			pkg:     "retry", test: "TestTrap48ACommitUnderWay",
		},
		{
			trap: 49, what: "suspects are claimed one at a time",
			file: "retry/feed.go", guard: "sel.Suspects, sel.Limit = true, 1", without: "sel.Suspects = true",
			pkg: "retry", test: "TestTrap49SuspectsRunAlone",
		},
		{
			trap: 49, what: "a suspect waits for its neighbours",
			file: "retry/crowd.go",
			guard: `	if c.inHand > 0 {
		return false
	}
	c.inHand, c.alone`,
			without: `	c.inHand, c.alone`,
			pkg:     "retry", test: "TestTrap49ASuspectWaits",
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
			pkg: "dedup", test: "TestTrap51",
		},
		{
			trap: 52, what: "replays of a consumer exclude each other",
			file:    "internal/parked/queries_replay.go",
			guard:   "WHERE state = 'running' AND lease_until > {now} AND id <> $2",
			without: "WHERE 1 = 0 AND id <> $2",
			pkg:     "poison", test: "TestTrap52ReplaysThatBeginAtOnce",
		},
		{
			trap: 52, what: "a replay that is being entered is waited for",
			file: "internal/parked/replay.go", guard: `if s.sql.replays.lock != "" {`, without: `if s.sql.replays.lock == "none" {`,
			pkg: "poison", test: "TestTrap52AReplayThatBegins",
		},
		{
			trap: 53, what: "a row is claimed for its consumer alone",
			file:    "internal/parked/queries.go",
			guard:   "AND consumer = $1 AND topic = $2 AND due_at <= {now}",
			without: "AND $1 <> '' AND topic = $2 AND due_at <= {now}",
			pkg:     "poison", test: "TestTrap53",
		},
		{
			trap: 54, what: "a failure in a shutdown is not charged",
			file: "retry/middleware.go", guard: "if a.delivery.ShuttingDown(a.ctx) {", without: "if false {",
			pkg: "retry", test: "TestTrap54AShutdown",
		},
		{
			trap: 54, what: "the end of the subscription does not cancel its messages",
			file: "retry/feed.go",
			guard: `	ctx = context.WithoutCancel(ctx)
`,
			without: "",
			pkg:     "retry", test: "TestTrap54ACancelled",
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
			trap: 57, what: "each try has the context of the delivery",
			file: "retry/middleware.go",
			guard: `		a.ctx, a.instruments.traced(), a.delivery.Consumer, a.delivery.Topic, a.attempts+1, a.msg)
	a.msg.SetContext(ctx)
	produced, err = verdict.Call(h, a.msg)
	a.msg.SetContext(a.ctx) // a handler may have left a cancelled one behind
`,
			without: `		a.msg.Context(), a.instruments.traced(), a.delivery.Consumer, a.delivery.Topic, a.attempts+1, a.msg)
	a.msg.SetContext(ctx)
	produced, err = verdict.Call(h, a.msg)
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
			file: "rabbit/subscription.go",
			guard: `context.WithoutCancel(ctx),
`,
			without: `ctx,
`,
			pkg: "rabbit", test: "TestTrap57",
		},
		{
			trap: 58, what: "a panic rolls back in the inbox",
			file:    "dedup/inbox.go",
			guard:   "defer release() // also when h panics; the panic goes on",
			without: "defer func() { _ = tx.Commit(); release() }()",
			pkg:     "dedup", test: "TestTrap58",
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
			file: "dedup/inbox.go", guard: "release() // the pool may have no other connection to look with", without: "_ = tx.Commit()",
			pkg: "retry", test: "TestTrap59",
		},
		{
			trap: 60, what: "errors lose their credentials",
			file:    "rabbit/redact.go",
			guard:   "if safe := redactText(text); safe != text {",
			without: `if safe := redactText(text); safe == "" {`,
			pkg:     "rabbit", test: "TestTrap60_NoCredentialsInErrors",
		},
		{
			trap: 65, what: "a panic is the error of its try",
			file: "internal/verdict/panic.go", guard: "value := recover()", without: "value := any(nil)",
			pkg: "retry", test: "TestTrap65",
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
			trap: 70, what: "an ack alone does not resolve",
			file: "retry/work.go", guard: "case claim.Handled(), acked && !claim.Managed():", without: "case claim.Handled(), acked:",
			pkg: "retry", test: "TestTrap70AnAckAlone",
		},
		{
			trap: 71, what: "what is undecided is not quarantined",
			file: "poison/middleware.go", guard: "v.Kind == verdict.Undecided || ", without: "",
			pkg: "poison", test: "TestTrap71",
		},
		{
			trap: 72, what: "a discarded message leaves a tombstone",
			file:    "internal/parked/operate.go",
			guard:   `err == nil && msg.UUID != "" && msg.UUID == messageID`,
			without: "err == nil && msg == nil",
			pkg:     "poison", test: "TestTrap72ADiscarded",
		},
		{
			trap: 72, what: "a replay does not make the inbox forget",
			file: "internal/parked/replay.go", guard: "if r.Plan.Force {", without: "if r != nil {",
			pkg: "poison", test: "TestTrap72AReplay",
		},
		{
			trap: 73, what: "an outage holds the message",
			file: "internal/parked/persist.go", guard: "if time.Now().After(deadline) ||", without: "if time.Now().Before(deadline) ||",
			pkg: "retry", test: "TestTrap73",
		},
		{
			trap: 78, what: "copies wait for a frozen one for so long only",
			file:    "dedup/queries.go",
			guard:   "lock.Milliseconds(), idle.Milliseconds())",
			without: "0*lock.Milliseconds(), idle.Milliseconds())",
			pkg:     "dedup", test: "TestTrap78ACopy",
		},
		{
			trap: 78, what: "a frozen handler loses its transaction",
			file:    "dedup/queries.go",
			guard:   "lock.Milliseconds(), idle.Milliseconds())",
			without: "lock.Milliseconds(), 0*idle.Milliseconds())",
			pkg:     "dedup", test: "TestTrap78AFrozen",
		},
	}
}
