package forwarder

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parked"
)

// failures records, for each kind of work of the scheduler, whether a failure was
// logged. If so, the next success is logged, too.
type failures [dispatch.Settling + 1]bool

var schedulerTexts = [...]workTexts{
	dispatch.Reading:    {"The outbox could not be read, trying again", "The outbox could be read again"},
	dispatch.Publishing: {"Messages could not be published, trying again", "Messages could be published again"},
	dispatch.Settling:   {"Outcomes could not be recorded, trying again", "Outcomes could be recorded again"},
}

// tell logs and counts the notices of the scheduler.
func (l *loop) tell(notices []dispatch.Notice) {
	log := l.config.Logger
	for i := range notices {
		n := &notices[i]
		switch n.Kind {
		case dispatch.WorkFailed:
			if !l.failures[n.Work] && !dialect.Contended(n.Err) {
				l.failures[n.Work] = true
				log.Error(schedulerTexts[n.Work].failed, n.Err, nil)
			}
		case dispatch.WorkSucceeded:
			if l.failures[n.Work] {
				log.Info(schedulerTexts[n.Work].worked, nil)
			}
			l.failures[n.Work] = false
		case dispatch.FirstRefusal:
			log.Error("Messages of a topic are refused, they are tried again later", errors.New(clean(n.Err)),
				named(n.ID, n.Metadata, watermill.LogFields{"topic": n.Topic, "attempt": n.Attempt, "size": n.Size}))
		case dispatch.FurtherRefusal:
			log.Debug("Message was refused, it is tried again later", named(n.ID, n.Metadata, watermill.LogFields{
				"topic": n.Topic, "attempt": n.Attempt, "size": n.Size, "err": clean(n.Err),
			}))
		case dispatch.TopicAccepts:
			log.Info("Topic accepts messages again", watermill.LogFields{"topic": n.Topic, "refused": n.Messages})
		case dispatch.TopicStalled:
			log.Error("Topic does not answer, others go on without it", n.Err,
				watermill.LogFields{"topic": n.Topic, "in_flight": n.Messages})
			l.instruments.stall(n.Topic)
		case dispatch.TopicAnswers:
			log.Info("Topic answers again", watermill.LogFields{"topic": n.Topic})
		case dispatch.AttributionBegins:
			log.Info("The outcome of messages is unknown, publishing them again one at a time",
				named(n.ID, n.Metadata, watermill.LogFields{"topic": n.Topic, "err": clean(n.Err)}))
		}
	}
}

// named returns the log fields of a message. The parameter metadata is the JSON object
// of its metadata.
func named(id string, metadata []byte, more watermill.LogFields) watermill.LogFields {
	decoded, _ := outboxrow.DecodeMetadata(metadata) // check reports a damaged row
	return fields.Message(id, decoded, more)
}

// clean returns the text of an error in a form that a text column can store, with at
// most 2,000 bytes.
func clean(err error) string { return parked.Clean(err.Error(), 2000) }
