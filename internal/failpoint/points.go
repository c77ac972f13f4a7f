package failpoint

// Points are all there are, in the order of a message's way. A name says what
// has just happened or, in the infinitive, what comes next. What happens inside
// of a transaction is not committed yet.
var Points = []string{
	// The transaction of a service, in which events are stored.
	"outbox/begun",
	"outbox/insert",
	"outbox/inserted",
	"outbox/worked", // the commit comes next
	"outbox/committed",

	// From the table of a stock forwarder into the outbox, in one transaction.
	"mover/group-begun", // a consumer group that never ran has its row
	"mover/locked",
	"mover/bury",
	"mover/inserted",
	"mover/advanced",
	"mover/moved", // committed

	// The lease of a forwarder.
	"forwarder/enrolled",
	"forwarder/slots-taken",
	"forwarder/leased", // committed
	"forwarder/holds-tidied",
	"forwarder/leave",
	"forwarder/resigned",

	// Out of the outbox, to the publisher.
	"forwarder/publish",
	"forwarder/handed-over",
	"forwarder/answered",
	"forwarder/remove",
	"forwarder/hold-lifted",
	"forwarder/rows-deleted",
	"forwarder/removed", // committed

	// A message that was refused waits, and its ordering key with it.
	"forwarder/charge",
	"forwarder/attempt-charged",
	"forwarder/key-held",
	"forwarder/charged", // committed

	// One that was given up becomes a dead letter.
	"forwarder/bury",
	"forwarder/letter-written",
	"forwarder/dead-row-deleted",
	"forwarder/dead-key-set",
	"forwarder/buried", // committed

	// An operator replays or discards dead letters, or releases their keys.
	"deadletter/letters-put-back",
	"deadletter/blocked-keys-moved",
	"deadletter/unblocking",
	"deadletter/batch-changed",
	"deadletter/batch-audited",
	"deadletter/batch-committed",
	"deadletter/key-released",

	// What was sent long ago is deleted from the log.
	"forwarder/sent-forgotten",

	// To the broker and back.
	"rabbit/published",
	"rabbit/report",

	// The embedded transport.
	"embedded/deliver",
	"embedded/delivered",

	// From the broker to a handler, and its answer.
	"rabbit/received",
	"rabbit/handed-over",
	"rabbit/ack",
	"rabbit/acked",
	"rabbit/requeue",
	"rabbit/requeued",
	"rabbit/give-back",

	// Messages are stored before they are handled.
	"durable/store",
	"parked/delivered",
	"retry/kept", // in the order of their keys; an ack comes next
	"durable/ack",
	"durable/acked",

	// The transaction of a message.
	"dedup/claim",
	"dedup/claimed",
	"dedup/handled",
	"dedup/failed",
	"dedup/known", // it was done before
	"dedup/commit",
	"dedup/committed",

	// That of a batch.
	"dedup/batch-claim",
	"dedup/batch-claimed",
	"dedup/batch-one-handled",
	"dedup/batch-handled",
	"dedup/batch-commit",
	"dedup/batch-committed",
	"dedup/batch-undone",
	"dedup/batch-settle",

	// Versions are compared in the same transaction.
	"sequence/decided",
	"sequence/written",
	"sequence/woken",

	// A message is parked: tried again later, redelivered, or early.
	"retry/again",
	"retry/park",
	"parked/park",
	"parked/park-early",
	"retry/parked", // committed

	// It is claimed when it is due, handed out, and its row moved on.
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

	// Quarantine, and a copy to a topic.
	"retry/quarantine-claim",
	"poison/quarantine",
	"parked/quarantined",
	"poison/copied",
	"poison/quarantined", // committed

	// Out of quarantine.
	"parked/replay",
	"parked/discard",
	"parked/tombstone",
	"parked/edited",
	"parked/audited",
	"parked/import",

	// The same for many.
	"replay/begin",
	"replay/begun", // committed
	"replay/resume",
	"replay/inbox-forgotten",
	"replay/due",
	"replay/released",
	"replay/advance",
	"replay/advanced", // committed
	"replay/end",

	// What need not be remembered any longer.
	"dedup/sweep",
	"dedup/swept", // committed
}
