// Package pending shows the messages of an outbox that wait to be forwarded, sends
// those that back off now, cancels messages, and pauses topics and tenants.
//
//	              ┌─ Retry ───▶ due now
//	once_outbox ──┤
//	              └─ Cancel ──▶ once_outbox_dead
//
// [Messages.Pause] keeps the messages of a topic or a tenant in the outbox until
// [Messages.Resume].
//
// All calls work on the tables. They need no forwarder, and any number may run.
//
// No index finds a message by its topic, key or message id, because every index
// on the outbox would slow down the business transactions. So a call looks at a bounded
// number of rows and says where the next call has to begin: [Page.Next],
// [Count.Next] and [Backlog.Next]. Rows that back off or are delayed are found by
// an index while they are few.
//
// A forwarder reads messages ahead, without locks. So [Messages.Cancel] takes only
// messages that no forwarder can have read:
//
//   - the message is due in 5 seconds or later: it backs off or is delayed,
//   - another message of its ordering key blocks the key,
//   - no forwarder has a lease on its slot.
//
// Such a message is not sent after it is cancelled, unless a forwarder that was
// frozen, and lost its lease meanwhile, had begun to send it before. Any other
// message needs [Plan].Force: a forwarder may be sending it, and may still send it
// after it is cancelled. The row then becomes a dead letter all the same.
//
// deadletter.Letter.Unknown of a cancelled message is false only if the message was
// never due, and so was never sent. It is true for all others, even for those that
// the broker refused: a forwarder may have sent the message before, and have died
// before it recorded that.
//
// To read the code, start with message.go and window.go (reading), then
// cancel.go and candidate.go, and pause.go.
package pending
