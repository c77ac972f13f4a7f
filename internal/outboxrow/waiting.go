package outboxrow

// WaitingSince are three columns of a query, for the lag of the outbox: when the first
// message without a due time was stored, the earliest due time, and when the first
// message failed that is refused or unconfirmed. Each is in milliseconds, or NULL. An
// index finds each, however long the outbox is.
const WaitingSince = `
	(SELECT {millis created_at} FROM {outbox} WHERE due_at IS NULL ORDER BY position LIMIT 1),
	(SELECT {millis due_at} FROM {outbox} WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1),
	(SELECT {millis failing_since} FROM {outbox} WHERE failing_since IS NOT NULL ORDER BY failing_since LIMIT 1)`
