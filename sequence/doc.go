// Package sequence is for messages that arrive out of order and say of which
// version of an aggregate they tell: a router middleware that ignores what is
// older than what the consumer has applied, and on request holds what is too
// new until the versions before it have come. See [Policy] for what each of the
// two ignores.
//
// The version is in the metadata "once_aggregate_type", "once_aggregate_id" and
// "once_aggregate_version", which outbox.SetAggregate sets. The last version
// that was applied is a row for each consumer and aggregate, locked and written
// in the transaction of the message. So it belongs inside of dedup, next to the
// handler:
//
//	poison ─ retry ─ dedup ─ sequence ─ handler
//
// A message that is held is parked by retry, which needs its Subscriber for
// that. A message without all three of the metadata is handled as it comes, and
// nothing is compared or remembered.
package sequence
