package dispatch

// Notice is an event for the log and the instruments. The fields in the comment
// of its kind are set.
type Notice struct {
	Kind     NoticeKind
	Work     Work
	Topic    string
	Messages int
	ID       string
	Attempt  int
	Size     int
	Err      error
}

// NoticeKind is the kind of a Notice.
type NoticeKind int

const (
	// WorkFailed reports a failure of Work with Err. The work is tried again.
	WorkFailed NoticeKind = iota

	// WorkSucceeded reports the first success of Work after failures.
	WorkSucceeded

	// FirstRefusal reports a refused message: Topic, ID, Attempt, Size, Err. It
	// is the first of an episode, which ends when the topic accepts messages
	// and refuses none for a minute.
	FirstRefusal

	// FurtherRefusal reports a refused message like FirstRefusal.
	FurtherRefusal

	// TopicAccepts reports the first confirm of Topic after Messages refusals.
	TopicAccepts

	// TopicStalled reports that Topic has not answered for too long (Err) and
	// has Messages in flight.
	TopicStalled

	// TopicAnswers reports the first answer of Topic after it stalled.
	TopicAnswers

	// AttributionBegins reports that the outcome of message ID of Topic is
	// unknown because of Err, and that messages are published one at a time.
	AttributionBegins
)

// Work is a kind of work that can fail as a whole.
type Work int

// The kinds of work.
const (
	Reading Work = iota
	Publishing
	Settling
)
