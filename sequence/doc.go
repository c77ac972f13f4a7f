// Package sequence handles messages that carry the version of an aggregate and may arrive out of
// order. Its router middleware ignores versions that are older than the last version that the
// consumer has applied. With [HoldForGap], it holds a version until the versions before it have
// arrived. [Policy] describes the two modes.
//
// The version is in the metadata "once_aggregate_type", "once_aggregate_id" and
// "once_aggregate_version", which outbox.SetAggregate sets. For each consumer and aggregate, one
// row contains the last applied version. The middleware locks and writes the row in the transaction
// of the message, so put the middleware inside of dedup, next to the handler:
//
//	poison ─ retry ─ dedup ─ sequence ─ handler
//
// Package retry parks a message that is held, so you need retry's Subscriber. A message without all
// three metadata keys is handled when it arrives; its version is neither compared nor remembered.
package sequence
