package sequence

// Errors that are not exported, because only a mistake in the setup causes
// them.
var (
	ErrNoTx         = errNoTx
	ErrNoConsumer   = errNoConsumer
	ErrNoSubscriber = errNoSubscriber
)
