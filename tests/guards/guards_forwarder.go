package main

// forwarderGuards are those of the outbox, the forwarder, the mover and the
// publisher.
func forwarderGuards() []guard {
	return []guard{
		{
			trap: 1, what: "a position is passed when all older transactions have ended",
			file: "internal/dispatch/cursor.go", guard: "c.marks[0].ceiling <= at.Horizon", without: "c.marks[0].ceiling >= 0",
			pkg: "forwarder", test: "TestTrap01_LateCommit",
		},
		{
			trap: 1, what: "a position is taken by a transaction that has an id",
			file:  "schema/postgres/0001_tables.sql",
			guard: "CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{outbox_position}') END", without: "nextval('{outbox_position}')",
			pkg: "forwarder", test: "TestTrap01_AWriterThatStandsStill",
		},
		{
			trap: 1, what: "what is passed was seen before a transaction of our own",
			file: "internal/dispatch/reading.go", guard: "_, read.settled = s.cursor.sights()", without: "read.settled, _ = s.cursor.sights()",
			pkg: "forwarder", test: "TestTrap01_ALowerPosition",
		},
		{
			trap: 1, what: "a refill begins where nobody can add a row below",
			file: "internal/dispatch/buffer.go", guard: "max(q.refillFrom, min(covered, b.low))", without: "max(q.refillFrom, covered)",
			pkg: "forwarder", test: "TestTrap01_ALateCommitBelowARefill",
		},
		{
			trap: 1, what: "what is dropped behind a head is read again",
			file: "internal/dispatch/buffer.go", guard: "from = min(from, m.Position-1)", without: "_ = from",
			pkg: "forwarder", test: "TestTrap01_ALateCommitBehindAHead",
		},
		{
			trap: 1, what: "a hold says from where on rows may still be added",
			file: "forwarder/queries.go", guard: "o.position, c.successors, c.reason", without: "o.position, o.position, c.reason",
			pkg: "forwarder", test: "TestTrap01_ALateCommitOfAKeyThatIsHeld",
		},
		{
			trap: 1, what: "a dead letter's hold says it too",
			file: "forwarder/settlement.go", guard: "m.Key, m.Position, d.SuccessorsAfter", without: "m.Key, m.Position, m.Position",
			pkg: "forwarder", test: "TestTrap01_ALateCommitOfAKeyThatADeadLetterHolds",
		},
		{
			trap: 1, what: "who lets a key go does not see who is about to commit",
			file: "deadletter/release.go", guard: "THEN f.position ELSE b.successors_after END", without: "THEN f.position ELSE f.position END",
			pkg: "forwarder", test: "TestTrap01_ALateCommitWhileAKeyIsLetGo",
		},
		{
			trap: 1, what: "a transaction whose outcome is unknown may not have ended",
			file: "forwarder/settlement.go", guard: "err == nil && removed > 0", without: "removed > 0",
			pkg: "forwarder", test: "TestTrap01_ASettlementThatFailed",
		},
		{
			trap: 1, what: "the mover reads below the oldest open transaction",
			file:    "mover/queries.go",
			guard:   "const readable = `transaction_id < pg_snapshot_xmin(pg_current_snapshot())`",
			without: "const readable = `TRUE`",
			pkg:     "mover", test: "TestTrap01",
		},
		{
			trap: 2, what: "rows are read whoever else writes",
			file: "forwarder/sweep.go", guard: "WHERE position > $1 AND CASE WHEN due_at IS NULL THEN ` + mayBeRead +",
			without: "WHERE position > $1 AND o.xmin::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint" +
				" AND CASE WHEN due_at IS NULL THEN ` + mayBeRead +",
			pkg: "forwarder", test: "TestTrap02",
		},
		{
			trap: 3, what: "a read stops when it has enough, and sorts nothing",
			file: "forwarder/sweep.go", guard: "AND CASE WHEN due_at IS NULL THEN ` + mayBeRead + ` ELSE 1 = 0 END",
			without: `AND due_at IS NULL AND position NOT IN {list $2 bigint} AND slot IN {list $3 smallint}
	             AND NOT EXISTS (SELECT 1 FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key AND h.position <> o.position)`,
			pkg: "forwarder", test: "TestTrap03",
		},
		{
			trap: 3, what: "the mover finds a batch by the primary key",
			file:    "mover/queries.go",
			guard:   "ORDER BY transaction_id, \"offset\" LIMIT $3) AS batch",
			without: "ORDER BY uuid LIMIT $3) AS batch",
			pkg:     "mover", test: "TestTrap03",
		},
		{
			trap: 4, what: "a lost commit is unknown",
			file:    "internal/dialect/tx.go",
			guard:   `fmt.Errorf("commit: %w: %w", ErrCommitUnknown, err)`,
			without: `fmt.Errorf("commit: %w", err)`,
			pkg:     "outbox", test: "TestLostConnectionAtCommit",
		},
		{
			trap: 4, what: "after an unknown commit the mover looks at the offset",
			file: "mover/mover.go", guard: "if err != nil && !errors.Is(err, dialect.ErrCommitUnknown) {", without: "if err != nil {",
			pkg: "mover", test: "TestTrap04",
		},
		{
			trap: 5, what: "what is deleted was confirmed",
			file:    "forwarder/sender.go",
			guard:   "\t\ts.results.add(result{o, err})\n\t})\n",
			without: "\t\t_ = err\n\t})\n\ts.results.add(result{o, nil})\n",
			pkg:     "tests/forwarding", test: "TestNothingIsDeletedBeforeItsConfirm",
		},
		{
			trap: 6, what: "a publisher without a transaction is refused",
			file: "outbox/publisher.go", guard: "return ErrNoTransaction", without: "return nil",
			pkg: "outbox", test: "TestPublishWithoutATransaction",
		},
		{
			trap: 11, what: "what no broker takes is dead at once",
			file: "internal/dispatch/outcome.go", guard: "s.giveUp(m, err, false)", without: "s.refuse(m, err, now)",
			pkg: "forwarder", test: "TestTrap11",
		},
		{
			trap: 12, what: "an outage is no refusal",
			file: "forwarder/outcome.go", guard: "\t\treturn Unavailable\n", without: "\t\treturn Refused\n",
			pkg: "forwarder", test: "TestTrap12",
		},
		{
			trap: 18, what: "an instance reads its own slots",
			file: "forwarder/sweep.go", guard: "OR slot NOT IN {list $3 smallint} THEN 1 = 0\n\t                  WHEN ordering_key IS NULL",
			without: "OR slot < 0 AND slot NOT IN {list $3 smallint} THEN 1 = 0\n\t                  WHEN ordering_key IS NULL",
			pkg:     "forwarder", test: "TestTrap18_Instances",
		},
		{
			trap: 18, what: "only the owner of a slot charges and buries",
			file: "forwarder/queries.go", guard: "s.slot = o.slot AND s.owner = ` + param + `)`",
			without: "s.slot = o.slot AND (s.owner = ` + param + ` OR 1 = 1))`",
			pkg:     "forwarder", test: "TestTrap18_OnlyTheOwner",
		},
		{
			trap: 18, what: "the server ends a transaction of ours whose process stands still",
			file: "internal/dialect/tx.go", guard: "SET LOCAL idle_in_transaction_session_timeout = 10000",
			without: "SET LOCAL idle_in_transaction_session_timeout = 0",
			pkg:     "tests/failpoints", test: "TestFrozenAt/refused",
		},
		{
			trap: 19, what: "the back-off is in the row",
			file: "forwarder/queries.go", guard: "due_at = {after c.delay}, last_error", without: "due_at = {now}, last_error",
			pkg: "forwarder", test: "TestTrap19",
		},
		{
			trap: 20, what: "rows with a key are found when they are due",
			file: "forwarder/sweep.go", guard: "WHERE due_at <= {now} AND ", without: "WHERE due_at <= {now} AND ordering_key IS NULL AND ",
			pkg: "forwarder", test: "TestTrap20",
		},
		{
			trap: 20, what: "what a process left behind is claimed again",
			file: "internal/parked/queries_claim.go", guard: "crashes > 0 AND consumer", without: "crashes > 0 AND owner IS NULL AND consumer",
			pkg: "poison", test: "TestTrap20",
		},
		{
			trap: 21, what: "what waits for a refused one is not read",
			file:    "forwarder/sweep.go",
			guard:   "THEN COALESCE((SELECT h.position FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key), position) = position",
			without: "THEN 1 = 1",
			pkg:     "forwarder", test: "TestTrap21",
		},
		{
			trap: 22, what: "refusals have a budget",
			file: "internal/dispatch/outcome.go", guard: "if m.Attempts >= s.config.MaxAttempts-1 {", without: "if m.Attempts >= 1<<30 {",
			pkg: "forwarder", test: "TestTrap22",
		},
		{
			trap: 22, what: "what the outbox refuses does not stop the mover",
			file: "mover/insert.go", guard: "if err == nil || !errors.Is(err, outbox.ErrInvalid) {",
			without: "if err == nil || !errors.Is(err, outbox.ErrInvalid) || true {",
			pkg:     "mover", test: "TestTrap22",
		},
		{
			trap: 23, what: "a read ends before its rows are published",
			file: "forwarder/read.go", guard: "err = s.read(ctx, func(tx *sql.Tx) error {",
			without: `err = func(work func(tx *sql.Tx) error) error {
		tx, err := s.db.BeginTx(context.WithoutCancel(ctx), nil)
		if err == nil {
			err = work(tx)
		}
		if err == nil && len(found) == 0 {
			err = tx.Commit()
		}
		return err
	}(func(tx *sql.Tx) error {`,
			pkg: "forwarder", test: "TestTrap23",
		},
		{
			trap: 24, what: "a read does not go through what was deleted",
			file: "internal/dispatch/reading.go", guard: "read.From = s.cursor.low", without: "read.From = 0",
			pkg: "forwarder", test: "TestTrap24",
		},
		{
			trap: 25, what: "no commit of ours notifies",
			file: "outbox/intx.go", guard: "\t\treturn failed\n\t})", without: `
		if failed == nil {
			_, failed = tx.ExecContext(ctx, "SELECT pg_notify('once_outbox', '')")
		}
		return failed
	})`,
			pkg: "tests/forwarding", test: "TestForwarderUsesNoNotifications",
		},
		{
			trap: 26, what: "advisory locks end with their transaction",
			file: "schema/up.go", guard: "SELECT pg_advisory_xact_lock(%d)", without: "SELECT pg_advisory_lock(%d)",
			pkg: "tests/forwarding", test: "TestForwarderBehindAPooler",
		},
		{
			trap: 27, what: "a connection that cannot write is thrown away",
			file: "internal/dialect/replica.go", guard: "_ = conn.Raw(func(any) error { return driver.ErrBadConn })",
			without: "_ = driver.ErrBadConn",
			pkg:     "internal/dialect", test: "TestTrap27",
		},
		{
			trap: 27, what: "so is one that cannot begin to write",
			file: "internal/dialect/tx.go", guard: "_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // see",
			without: "_ = driver.ErrBadConn // see",
			pkg:     "internal/dialect", test: "TestTrap27",
		},
		{
			trap: 28, what: "a message without a due time gets none of our clock",
			file:    "outbox/check.go",
			guard:   "if !ok {\n\t\treturn time.Time{}\n",
			without: "if !ok {\n\t\treturn time.Now()\n",
			pkg:     "tests/forwarding", test: "TestNoTimeOfTheHost",
		},
		{
			trap: 29, what: "stock forwarders and movers take turns",
			file: "mover/queries.go", guard: "position + ` FOR UPDATE`", without: "position",
			pkg: "tests", test: "TestMigrationFromTheStockForwarder",
		},
		{
			trap: 30, what: "one at a time brings the schema up",
			file: "schema/up.go", guard: "SELECT pg_advisory_xact_lock(%d)", without: "SELECT %d",
			pkg: "schema", test: "TestTrap30",
		},
		{
			trap: 31, what: "names that PostgreSQL would cut are refused",
			file: "schema/config.go", guard: "len(c.Prefix) > limit {", without: "len(c.Prefix) > limit && false {",
			pkg: "schema", test: "TestTrap31",
		},
		{
			trap: 32, what: "steering metadata is refused by the outbox",
			file: "outbox/check.go", guard: "if meta.Steering(key) {", without: "if meta.Steering(key) && false {",
			pkg: "outbox", test: "TestInvalidMessageIsRefused",
		},
		{
			trap: 33, what: "a statement has no more rows than parameters",
			file: "outbox/insert.go", guard: "if n == maxRows || n > 0 && size > maxBytes {", without: "if n > 0 && size > maxBytes {",
			pkg: "outbox", test: "TestPublishStoresAnyNumber",
		},
		{
			trap: 61, what: "confirmed rows are deleted in a transaction",
			file:    "forwarder/settlement.go",
			guard:   "tx.ExecContext(ctx, statement, s.dialect.List(positions), s.dialect.Strings(ids))",
			without: "s.db.ExecContext(ctx, statement, s.dialect.List(positions), s.dialect.Strings(ids))",
			pkg:     "tests/forwarding", test: "TestEveryStatementIsInATransaction",
		},
		{
			trap: 62, what: "what was read is passed when who has begun by now has ended",
			file: "internal/dispatch/cursor.go", guard: "c.mark(settled.position, at.Ceiling)", without: "c.mark(settled.position, at.Horizon)",
			pkg: "forwarder", test: "TestTrap62",
		},
		{
			trap: 63, what: "one of a key is published at a time",
			file:    "internal/dispatch/buffer.go",
			guard:   "\tif q.head == nil {\n\t\tq.head = m\n\t\tb.ready.put(m)\n\t} else {\n\t\tq.add(m)\n\t}\n",
			without: "\tq.head = m\n\tb.ready.put(m)\n",
			pkg:     "forwarder", test: "TestTrap63",
		},
		{
			trap: 64, what: "a hold is in the tables",
			file:    "forwarder/settlement.go",
			guard:   "_, err = tx.ExecContext(ctx, s.sql.block, args...)",
			without: "_ = args",
			pkg:     "forwarder", test: "TestTrap64_ARefusedHead",
		},
		{
			trap: 64, what: "a hold whose head is gone is removed",
			file: "internal/dispatch/reading.go", guard: "read.Tidy = true", without: "read.Tidy = false",
			pkg: "forwarder", test: "TestTrap64_AHold",
		},
		{
			trap: 64, what: "a hold is lifted by who has its key",
			file: "forwarder/queries.go", guard: "ON s.slot = c.slot AND s.owner = $4)", without: "ON s.slot = c.slot AND '' <> $4)",
			pkg: "forwarder", test: "TestTrap64_AHoldIsLiftedByWhoHasItsKey",
		},
		{
			trap: 66, what: "what nobody would handle is refused",
			file: "embedded/publish.go", guard: "if len(to) == 0 {", without: "if len(to) == 0 && false {",
			pkg: "embedded", test: "TestTrap66MessageWithoutConsumerIsRefused",
		},
		{
			trap: 66, what: "what was not stored is not published",
			file: "embedded/publish.go", guard: `return fmt.Errorf("embedded: publish to %q: %w", topic, err)`, without: "return nil",
			pkg: "embedded", test: "TestTrap66NilMeansCommitted",
		},
		{
			trap: 67, what: "suspects are published one at a time",
			file: "internal/dispatch/publishing.go", guard: "if s.publishOutage.failures > 0 || s.attribution.active() {",
			without: "if s.publishOutage.failures > 0 {",
			pkg:     "forwarder", test: "TestTrap67",
		},
		{
			trap: 68, what: "a row is deleted by position and id",
			file: "forwarder/queries.go", guard: "FROM ` + confirmed + `) THEN 1 = 1", without: "FROM ` + confirmed + `) OR 1 = 1 THEN 1 = 1",
			pkg: "forwarder", test: "TestTrap68_AConfirmed",
		},
		{
			trap: 75, what: "Close does not wait for longer than it may",
			file:    "internal/dispatch/scheduler.go",
			guard:   "s.stopUntil = now.Add(s.config.CloseTimeout)\n\ts.sending",
			without: "s.stopUntil = now.Add(time.Minute)\n\ts.sending",
			pkg:     "forwarder", test: "TestTrap75",
		},
		{
			trap: 76, what: "no topic takes the whole window",
			file: "internal/dispatch/publishing.go", guard: "return max(1, 3*(s.config.Window-s.inFlight))", without: "return s.config.Window",
			pkg: "forwarder", test: "TestTrap76",
		},
		{
			trap: 76, what: "what is in flight of a topic that does not answer is not waited for",
			file: "internal/dispatch/publishing.go", guard: "s.inFlight > s.topics.stalledInFlight()",
			without: "s.inFlight > 0*s.topics.stalledInFlight()",
			pkg:     "forwarder", test: "TestTrap76_ATopicThatDoesNotAnswerWhileAnotherFails",
		},
		{
			trap: 77, what: "the mover goes on where stock has stopped",
			file:    "mover/batch.go",
			guard:   "at, err := m.lock(ctx, tx)",
			without: "_, err := m.lock(ctx, tx)\n\t\tat := place{transaction: \"0\"}",
			pkg:     "mover", test: "TestTrap77",
		},
		{
			trap: 88, what: "an instance with another destination does not join",
			file: "forwarder/queries.go", guard: "FROM {forwarders} WHERE destination <> $1\n\t\t\tORDER BY",
			without: "FROM {forwarders} WHERE destination <> $1 AND 1 = 0\n\t\t\tORDER BY",
			pkg:     "forwarder", test: "TestAnInstanceWithAnotherDestination",
		},
		{
			trap: 88, what: "nor does one that joins at the same moment",
			file: "forwarder/destination.go", guard: "SELECT pg_advisory_xact_lock(%d)", without: "SELECT %d",
			pkg: "forwarder", test: "TestTwoDestinationsStartAtOnce",
		},
		{
			trap: 88, what: "an instance whose destination was replaced sends nothing",
			file: "forwarder/destination.go", guard: "s.LoseSlots(s.Slots())", without: "_ = s.Slots()",
			pkg: "forwarder", test: "TestAnInstanceThatComesBackGivesWay",
		},
	}
}
