package sequence

// These errors are not exported, because only a mistake in the setup causes them.
var (
	ErrNoTx         = errNoTx
	ErrNoConsumer   = errNoConsumer
	ErrNoSubscriber = errNoSubscriber
)
