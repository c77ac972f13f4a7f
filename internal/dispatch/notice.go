package dispatch

// Notice is an event for the log and the metrics. The comment of its kind names the
// fields that are set.
type Notice struct {
	Kind     NoticeKind
	Work     Work
	Topic    string
	Messages int
	ID       string
	Metadata []byte // of the message ID
	Attempt  int
	Size     int
	Err      error
}

// NoticeKind says what a Notice reports.
type NoticeKind int

const (
	// WorkFailed reports that Work failed with Err. The Scheduler tries it again.
	WorkFailed NoticeKind = iota

	// WorkSucceeded reports that Work succeeded for the first time after failures.
	WorkSucceeded

	// FirstRefusal reports the first refused message of an episode: Topic, ID, Attempt,
	// Size, Err. The episode ends when the topic has accepted a message, and refused
	// none for a minute.
	FirstRefusal

	// FurtherRefusal reports a later refused message of an episode. It has the fields
	// of FirstRefusal.
	FurtherRefusal

	// TopicAccepts reports the first confirm of Topic after a number of refusals, which
	// is in Messages.
	TopicAccepts

	// TopicStalled reports that the broker has not answered for Topic for too long
	// (Err). Messages is how many of its messages are in flight.
	TopicStalled

	// TopicAnswers reports the first answer for Topic after the topic stalled.
	TopicAnswers

	// AttributionBegins reports that the outcome of message ID of Topic is unknown
	// because of Err. Messages are then published one at a time.
	AttributionBegins
)

// Work is a kind of work that can fail for all messages.
type Work int

// The kinds of work: reading rows, publishing, and recording outcomes.
const (
	Reading Work = iota
	Publishing
	Settling
)
