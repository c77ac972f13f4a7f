package sequence

// Errors that only a mistake in the setup causes.
var (
	ErrNoTx         = errNoTx
	ErrNoConsumer   = errNoConsumer
	ErrNoSubscriber = errNoSubscriber
)
