package main

// consumerGuards are those of the subscriber, the inbox, retries and the
// quarantine.
func consumerGuards() []guard { return append(inboxGuards(), parkedGuards()...) }

// inboxGuards are those of traps 34 to 47: how messages come, and are done once.
func inboxGuards() []guard {
	return []guard{
		{
			trap: 34, what: "a message is entered before it is handled",
			file: "dedup/inbox.go",
			guard: `	for _, id := range identities {
		failpoint.Hit("dedup/claim")
		if err := i.claim(ctx, tx, id, consumer, parked.Tenant(msg)); err != nil {
			return err
		}
	}
	if err := checkLease(ctx); err != nil {
		return err
	}
	if err := i.handle(ctx, tx, msg, consumer, h); err != nil {
		return i.failed(ctx, tx, release, err)
	}
`,
			without: `	if err := checkLease(ctx); err != nil {
		return err
	}
	if err := i.handle(ctx, tx, msg, consumer, h); err != nil {
		return i.failed(ctx, tx, release, err)
	}
	for _, id := range identities {
		if err := i.claim(ctx, tx, id, consumer, parked.Tenant(msg)); err != nil {
			return err
		}
	}
`,
			pkg: "dedup", test: "TestDuplicateWaitsForTheFirstDelivery",
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
			pkg: "dedup", test: "TestFailedMessageIsNotRemembered",
		},
		{
			trap: 36, what: "the inbox remembers for longer than retry tries",
			file: "consumer.go", guard: ", config.Retry.LongestDelay())", without: ")",
			pkg: ".", test: "TestInboxRemembersForLonger",
		},
		{
			trap: 36, what: "it remembers for longer than the longest way back",
			file: "dedup/config.go", guard: "if c.Retention < c.MaxDuplicateAge {", without: "if c.Retention < 0 {",
			pkg: "dedup", test: "TestRetentionShorterThanMaxDuplicateAge",
		},
		{
			trap: 36, what: "it remembers what waits or is in quarantine",
			file: "dedup/queries.go", guard: "AND p.state NOT IN ", without: "AND false AND p.state NOT IN ",
			pkg: "dedup", test: "TestMessageThatMayRunAgain",
		},
		{
			trap: 36, what: "entries of a replay stay until it has finished",
			file: "dedup/queries.go", guard: "WHERE state <> 'finished'", without: "WHERE false AND state <> 'finished'",
			pkg: "poison", test: "TestTrap36",
		},
		{
			trap: 37, what: "produced messages are stored in the handler's transaction",
			file:    "dedup/inbox.go",
			guard:   "return i.store(tx, consumer, all)",
			without: "return i.dialect.Write(ctx, i.db, func(tx *sql.Tx) error { return i.store(tx, consumer, all) })",
			pkg:     "dedup", test: "TestProducedMessagesOfARefusedCommit",
		},
		{
			trap: 38, what: "a failure is not remembered",
			file: "dedup/errors.go", guard: "lost := tx.Rollback()", without: "lost := tx.Commit()",
			pkg: "retry", test: "TestTrap38RetriesAndReplaysAreNoDuplicates/sqlite",
		},
		{
			trap: 38, what: "retry refuses to run inside of dedup",
			file: "retry/middleware.go", guard: "if _, inside := parked.TxOf(msg.Context()); inside {",
			without: "if _, inside := parked.TxOf(msg.Context()); inside && msg == nil {",
			pkg:     "retry", test: "TestTrap38MiddlewareInsideDedupIsRefused",
		},
		{
			trap: 38, what: "poison refuses to run inside of dedup",
			file: "poison/middleware.go", guard: "if _, inside := parked.TxOf(ctx); inside {",
			without: "if _, inside := parked.TxOf(ctx); inside && msg == nil {",
			pkg:     "poison", test: "TestTrap38MiddlewareInsideDedupIsRefused",
		},
		{
			trap: 38, what: "poison refuses to run inside of retry",
			file: "poison/middleware.go", guard: "if parked.Tried(ctx, msg) {",
			without: "if parked.Tried(ctx, msg) && msg == nil {",
			pkg:     "poison", test: "TestTrap38MiddlewareInsideRetryIsRefused",
		},
		{
			trap: 39, what: "an empty id is refused",
			file: "dedup/identity.go", guard: `case id == "":`, without: `case id == "" && id != "":`,
			pkg: "dedup", test: "TestUnusableID",
		},
		{
			trap: 39, what: "an unusable key is refused",
			file: "dedup/identity.go", guard: `if why := unusable(name); why != "" {`, without: "if why := unusable(name); why == name {",
			pkg: "dedup", test: "TestUnusableKey",
		},
		{
			trap: 40, what: "payloads of one id are compared",
			file: "dedup/inbox.go", guard: "case !same:", without: "case false:",
			pkg: "dedup", test: "TestSameIDWithAnotherPayload",
		},
		{
			trap: 40, what: "contents of one key are compared",
			file: "dedup/identity.go", guard: "sha256.Sum256(content)}", without: "sha256.Sum256(content[:0])}",
			pkg: "dedup", test: "TestSameKeyWithOtherContent",
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
			file:    "rabbit/subscriber_delivery.go",
			guard:   `ctx = disposition.WithUndecodable(ctx, fmt.Errorf("rabbit: the message cannot be decoded: %w", err))`,
			without: "_ = disposition.WithUndecodable",
			pkg:     "rabbit", test: "TestTrap41_Undecodable",
		},
		{
			trap: 41, what: "no handler sees what cannot be decoded",
			file: "internal/disposition/panic.go", guard: "if why := Undecodable(msg.Context()); why != nil {",
			without: "if why := Undecodable(msg.Context()); why != nil && h == nil {",
			pkg:     "poison", test: "TestTrap41",
		},
		{
			trap: 41, what: "nor one that has dedup alone",
			file: "dedup/identity.go", guard: "if why := disposition.Undecodable(msg.Context()); why != nil {",
			without: "if why := disposition.Undecodable(msg.Context()); why != nil && i == nil {",
			pkg:     "dedup", test: "TestUndecodableMessageIsNotHandled",
		},
		{
			trap: 41, what: "what cannot be decoded is not replayed",
			file: "poison/replay.go", guard: "if undecodable {", without: "if undecodable && tx == nil {",
			pkg: "poison", test: "TestTrap41",
		},
		{
			trap: 42, what: "a nacked message rests before it goes back",
			file: "rabbit/subscriber_delivery.go",
			guard: `d.waitPause()
`,
			without: `_ = d.pause
`,
			pkg: "rabbit", test: "TestTrap42_NackedMessagesComeBack/counted_here",
		},
		{
			trap: 43, what: "storing outlives the message's context",
			file:    "internal/parked/persist.go",
			guard:   "context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(p.OneTry, oneTry))",
			without: "context.WithTimeout(ctx, cmp.Or(p.OneTry, oneTry))",
			pkg:     "poison", test: "TestTrap43ExpiredContext",
		},
		{
			trap: 43, what: "no ack before the entry is stored",
			file: "poison/middleware.go",
			guard: `end("", err)
		return err`,
			without: `end("", err)
		return nil`,
			pkg: "poison", test: "TestTrap43UnstoredMessage",
		},
		{
			trap: 43, what: "a copy that is refused does not undo the entry",
			file: "poison/copy.go",
			guard: `_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT once_copy")
`,
			without: "",
			pkg:     "poison", test: "TestTrap43RefusedCopy",
		},
		{
			trap: 44, what: "the end of the deliveries is noticed",
			file:  "rabbit/subscriber_subscription.go",
			guard: "return ch.endReason()",
			without: `ch.deliveries = nil
				continue`,
			pkg: "rabbit", test: "TestTrap44_QueueIsDeleted/classic",
		},
		{
			trap: 44, what: "what is in flight can be acked after a cancel",
			file: "rabbit/subscriber_subscription.go", guard: "if ch.inFlight > 0 {", without: "if false {",
			pkg: "rabbit", test: "TestTrap44_CancelledConsumer",
		},
		{
			trap: 45, what: "an ack goes to the channel of its message",
			file: "rabbit/subscriber_subscription.go",
			guard: `sub.settle(d)
		case`,
			without: `d.channel, d.raw.Acknowledger = ch, ch.amqp
			sub.settle(d)
		case`,
			pkg: "rabbit", test: "TestTrap45_AcksOf",
		},
		{
			trap: 45, what: "a multiple ack includes only acked messages",
			file: "rabbit/subscriber_ack.go", guard: "if len(ch.unacked) > 0 {", without: "if len(ch.unacked) < 0 {",
			pkg: "rabbit", test: "TestTrap45_AMultipleAck",
		},
		{
			trap: 46, what: "a consumer timeout that is too short is reported",
			file: "rabbit/subscriber_limits.go", guard: "timeout <= unacked {", without: "timeout <= 0*unacked {",
			pkg: "rabbit", test: "TestTrap46_Limits",
		},
		{
			trap: 46, what: "what is held is handed back in time",
			file:    "internal/parked/persist.go",
			guard:   "time.Now().After(deadline) ||",
			without: "time.Now().After(deadline.Add(time.Hour)) ||",
			pkg:     "retry", test: "TestTrap46MessageIsNackedAfterUnackedWait/sqlite",
		},
		{
			trap: 81, what: "keys that steer do not reach a handler",
			file: "dedup/inbox.go", guard: "msg.Metadata = meta.Received(msg.Metadata)", without: "_ = meta.Received(msg.Metadata)",
			pkg: "tests/dropin", test: "TestForeignHeaders.*/stock",
		},
		{
			trap: 81, what: "keys that steer do not come in from RabbitMQ",
			file: "rabbit/marshaler.go", guard: "|| !meta.Travels(key)", without: "|| !meta.Travels(key) && key != meta.Topic",
			pkg: "rabbit", test: "TestTrap81_",
		},
		{
			trap: 96, what: "a channel that only nacks is given up",
			file: "rabbit/publisher_nacks.go", guard: "if streak.nacks < nacksInARow ||", without: "if streak.nacks > 0 ||",
			pkg: "rabbit", test: "TestTrap96_AFullQueue",
		},
		{
			trap: 97, what: "a queue is declared without the broker's default limit",
			file: "rabbit/subscriber_topology.go", guard: "if !limited || configured ||", without: "if limited || configured ||",
			pkg: "rabbit", test: "TestTrap97_AQueue",
		},
		{
			trap: 47, what: "the broker's own delivery limit is known",
			file: "rabbit/subscriber_limits.go", guard: "case major >= 4:", without: "case false:",
			pkg: "rabbit", test: "TestTrap47TheDeliveryLimit",
		},
		{
			trap: 47, what: "what goes back is nacked, not rejected",
			file: "rabbit/subscriber_ack.go", guard: "err := d.raw.Nack(false, true)", without: "err := d.raw.Reject(true)",
			pkg: "rabbit", test: "TestTrap47MessagesAreGivenBack",
		},
		{
			trap: 47, what: "what has failed does not go back to the broker",
			file: "retry/middleware.go", guard: "return a.park(failure, delay)", without: "_ = failure; return disposition.HandBack(err)",
			pkg: "tests", test: "TestRetriesDoNotUseTheDeliveryLimit",
		},
	}
}
