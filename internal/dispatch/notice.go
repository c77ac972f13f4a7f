package dispatch

// Notice is an event for the log and the metrics. The comment of each kind names the
// fields that are set.
type Notice struct {
	Kind     NoticeKind
	Work     Work
	Topic    string
	Messages int
	ID       string
	Metadata []byte // metadata of the message with this ID
	Attempt  int
	Size     int
	Err      error
}

// NoticeKind says what a Notice reports.
type NoticeKind int

const (
	// WorkFailed means that Work failed with Err. The Scheduler tries the work again.
	WorkFailed NoticeKind = iota

	// WorkSucceeded means that Work succeeded for the first time after failures.
	WorkSucceeded

	// FirstRefusal means that a message was refused, and that this refusal is the first of
	// an episode. An episode ends when the broker has confirmed a message of the topic, and
	// has refused none for a minute. Topic, ID, Metadata, Attempt, Size and Err are set.
	FirstRefusal

	// FurtherRefusal means that a message was refused, and that this is a further refusal
	// of the same episode. The same fields as for FirstRefusal are set.
	FurtherRefusal

	// TopicAccepts means that the broker has confirmed a message of Topic for the first
	// time after refusals. Messages is the number of refusals.
	TopicAccepts

	// TopicStalled means that the broker has not answered for Topic for too long. Err is
	// set, and Messages is the number of messages of the topic in flight.
	TopicStalled

	// TopicAnswers means that Topic had stalled, and that the broker has now answered for
	// it.
	TopicAnswers

	// AttributionBegins means that the outcome of a message is unknown because of Err. ID,
	// Metadata and Topic describe the message. From now on, messages are published one at a
	// time.
	AttributionBegins
)

// Work is a kind of work that can fail for reasons that affect all messages.
type Work int

// The kinds of work: reading rows, publishing, and recording outcomes.
const (
	Reading Work = iota
	Publishing
	Settling
)
