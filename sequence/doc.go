// Package sequence handles messages that arrive out of order and carry the version
// of an aggregate. Its router middleware ignores versions that are older than the
// last version that the consumer has applied. On request it holds a version until
// the versions before it have arrived. See [Policy] for the two modes.
//
// The version is in the metadata "once_aggregate_type", "once_aggregate_id" and
// "once_aggregate_version", which outbox.SetAggregate sets. The last applied version
// is a row for each consumer and aggregate. The middleware locks and writes the row
// in the transaction of the message, so put it inside of dedup, next to the
// handler:
//
//	poison ─ retry ─ dedup ─ sequence ─ handler
//
// retry parks a message that is held, so this needs retry's Subscriber. A message
// without all three metadata keys is handled when it arrives; its version is
// neither compared nor remembered.
//
// # Reading the code
//
// Read config.go, resequencer.go (the middleware), decide.go (pure rules: where a
// version stands), gap.go (early and late versions), queries.go.
package sequence
