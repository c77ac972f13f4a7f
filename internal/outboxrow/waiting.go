package outboxrow

// WaitingSince are three columns of a query for the lag of the outbox, in milliseconds
// or NULL:
//
//   - the time at which the first message without a due time was stored,
//   - the earliest due time,
//   - the earliest failure of a message that is refused or unconfirmed.
//
// An index finds each of these values, however long the outbox is.
const WaitingSince = `
	(SELECT {millis created_at} FROM {outbox} WHERE due_at IS NULL ORDER BY position LIMIT 1),
	(SELECT {millis due_at} FROM {outbox} WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1),
	(SELECT {millis failing_since} FROM {outbox} WHERE failing_since IS NOT NULL ORDER BY failing_since LIMIT 1)`
