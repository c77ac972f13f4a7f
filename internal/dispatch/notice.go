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

	// FirstRefusal means that a message was refused, and that an episode begins with this
	// refusal. It sets Topic, ID, Attempt, Size and Err. The episode ends when the topic has
	// accepted a message, and has refused no message for a minute.
	FirstRefusal

	// FurtherRefusal means that another message of the same episode was refused. It sets
	// the same fields as FirstRefusal.
	FurtherRefusal

	// TopicAccepts means that Topic confirmed a message for the first time after refusals.
	// Messages is the number of refusals.
	TopicAccepts

	// TopicStalled means that the broker has not answered for Topic for too long. Err is
	// set, and Messages is the number of messages of the topic in flight.
	TopicStalled

	// TopicAnswers means that the broker has answered for a stalled Topic again.
	TopicAnswers

	// AttributionBegins means that the outcome of a message is unknown because of Err. ID
	// and Topic name the message. From now on, messages are published one at a time.
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
