package failpoint

// Points lists all points, in the order in which a message passes them. A point whose name ends in
// a past participle, such as "outbox/inserted", comes after that step. A point whose name ends in
// an infinitive, such as "outbox/insert", comes before the step. At a point inside a transaction,
// the changes are not committed yet. A comment marks the points after the commit.
var Points = []string{
	// The transaction of a service, in which events are stored.
	"outbox/begun",
	"outbox/insert",
	"outbox/inserted",
	"outbox/worked", // the commit comes next
	"outbox/committed",

	// The mover: from the table of a stock forwarder into the outbox, in one transaction.
	"mover/group-created", // the row of a new consumer group
	"mover/locked",
	"mover/dead-letter",
	"mover/inserted",
	"mover/advanced",
	"mover/moved", // committed

	// The lease of a forwarder.
	"forwarder/enrolled",
	"forwarder/slots-taken",
	"forwarder/leased", // committed
	"forwarder/blocked-keys-tidied",
	"forwarder/leave",
	"forwarder/resigned",

	// From the outbox to the publisher.
	"forwarder/publish",
	"forwarder/handed-over",
	"forwarder/answered",
	"forwarder/remove",
	"forwarder/key-unblocked",
	"forwarder/sent-logged",
	"forwarder/rows-deleted",
	"forwarder/removed", // committed

	// A refused message waits, and blocks its ordering key.
	"forwarder/charge",
	"forwarder/attempt-charged",
	"forwarder/key-blocked",
	"forwarder/charged", // committed

	// A message that the forwarder has given up on becomes a dead letter.
	"forwarder/give-up",
	"forwarder/dead-row-written",
	"forwarder/dead-row-deleted",
	"forwarder/dead-key-set",
	"forwarder/given-up", // committed

	// An operator replays or discards dead letters, or releases their keys.
	"dead/letters-put-back",
	"dead/blocked-keys-moved",
	"operate/unblocking",
	"dead/batch-changed",
	"dead/batch-audited",
	"dead/batch-committed",
	"dead/key-released",

	// An operator retries or cancels pending messages.
	"operate/outbox/due",
	"operate/outbox/barriers-locked",
	"operate/outbox/burying",
	"operate/outbox/cancelled", // committed

	// An operator pauses or resumes a topic.
	"operate/outbox/pause-changed",
	"operate/outbox/pause-committed",

	// Old entries are deleted from the log of sent messages.
	"forwarder/sent-forgotten",

	// From the publisher to the broker, and the broker's confirm.
	"rabbit/published",
	"rabbit/report",

	// The embedded transport.
	"embedded/deliver",
	"embedded/delivered",

	// From the broker to a handler, and the ack.
	"rabbit/received",
	"rabbit/handed-over",
	"rabbit/ack",
	"rabbit/acked",
	"rabbit/requeue",
	"rabbit/requeued",
	"rabbit/give-back",

	// A durable consumer stores messages before they are handled.
	"durable/store",
	"parked/delivered",
	"retry/stored", // in key order; an ack comes next
	"durable/ack",
	"durable/acked",

	// The transaction of one message.
	"dedup/claim",
	"dedup/claimed",
	"dedup/handled",
	"dedup/failed",
	"dedup/known", // the inbox has the message already
	"dedup/commit",
	"dedup/committed",

	// The transaction of a batch.
	"dedup/batch-claim",
	"dedup/batch-claimed",
	"dedup/batch-one-handled",
	"dedup/batch-handled",
	"dedup/batch-commit",
	"dedup/batch-committed",
	"dedup/batch-undone",
	"dedup/batch-settle",

	// The comparison of versions, in the same transaction.
	"sequence/decided",
	"sequence/written",
	"sequence/woken",

	// A message is parked, because it failed, was redelivered, or is early.
	"retry/again",
	"retry/park",
	"parked/park",
	"parked/park-early",
	"retry/parked", // committed

	// A due message is claimed and handed out, and its row is updated or removed.
	"parked/claim",
	"parked/claimed", // committed
	"retry/hand-out",
	"parked/extended",
	"retry/handled",
	"parked/settle",
	"parked/removed",
	"parked/changed",
	"parked/promoted",
	"parked/settled", // committed
	"parked/forgotten",

	// A message is quarantined.
	"poison/quarantine",
	"parked/quarantined",
	"poison/quarantined", // committed

	// An operator runs, cancels and discards parked messages, and removes a consumer.
	"parked/candidates-locked",
	"parked/applied",
	"parked/operated", // committed
	"parked/consumer-removed",

	// An operator pauses or resumes a consumer. The instances see it.
	"parked/pause-changed",
	"parked/pause-committed",
	"parked/pauses-read",
	"retry/pause",
	"retry/paused", // the subscription to the transport is closed

	// A breaker opens, probes and closes.
	"parked/breaker-failing",
	"parked/breaker-opened",
	"parked/breaker-open", // committed
	"parked/given-back",
	"parked/probe-claimed", // committed
	"parked/probe-failed",  // committed
	"parked/breaker-closed",
	"parked/breaker-close", // committed

	"parked/starts-taken", // committed

	// Entries leave the quarantine.
	"operate/quarantine/replay",
	"operate/quarantine/discard",
	"operate/quarantine/tombstone",
	"operate/quarantine/edited",
	"operate/quarantine/audited",
	"operate/quarantine/import",

	// Many entries are replayed.
	"replay/begin",
	"replay/begun", // committed
	"replay/resume",
	"replay/inbox-forgotten",
	"replay/due",
	"replay/released",
	"replay/advance",
	"replay/advanced", // committed
	"replay/end",
	"replay/stop",
	"replay/stopped", // committed

	// Expired ids are deleted from the inbox.
	"dedup/keys-recorded",
	"dedup/sweep",
	"dedup/swept", // committed
}
