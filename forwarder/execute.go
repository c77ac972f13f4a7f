package forwarder

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/internal/usercode"
)

func (l *loop) execute(c dispatch.Commands, now time.Time) {
	if c.Read != nil {
		l.read(c.Read)
	}
	l.sender.gate.Store(l.scheduler.Sending())
	if len(c.Publish) > 0 {
		stamp := meta.Stamp(now)
		for _, p := range c.Publish {
			l.sender.orders <- order{Publish: p, at: now, stamp: stamp}
		}
	}
	if c.Settle != nil {
		l.settle(c.Settle)
	}
}

func (l *loop) read(read *dispatch.Read) {
	l.background(func(ctx context.Context) func() {
		began := time.Now()
		got, err := l.store.rows(ctx, read)
		l.instruments.reads.Record(time.Since(began), telemetry.Succeeded(err))
		return func() {
			if err != nil {
				l.scheduler.ReadFailed(time.Now(), read, err)
				return
			}
			l.scheduler.RowsRead(time.Now(), read, got.rows, got.reach)
			if got.rescan {
				l.scheduler.Rescan()
			}
			if got.unowned && !l.scheduler.Stopping() {
				l.unowned()
			}
		}
	})
}

func (l *loop) settle(batch *dispatch.Settlement) {
	l.background(func(ctx context.Context) func() {
		began := time.Now()
		result := l.store.settle(ctx, batch, func(topic string) AfterDead { return l.config.policy(topic).AfterDead })
		l.instruments.settlements.Record(time.Since(began), telemetry.Succeeded(result.Err))
		return func() {
			l.settleErr = result.Err
			l.instruments.settled(batch, result)
			for _, d := range batch.Deaths[:result.Deaths] {
				m := d.Message
				fields := watermill.LogFields{"topic": m.Topic, "reason": reasonOf(d), "attempt": m.Attempts + 1, "size": d.Size}
				if m.Key != "" && l.config.policy(m.Topic).AfterDead == BlockKey {
					fields["blocked_key"] = m.Key
					fields["remedy"] = "replay or discard the dead letter, or release the key: once outbox blocked names the letter"
				}
				l.config.Logger.Error("Message is dead", errors.New(clean(d.Err)), named(m.ID, d.Metadata, fields))
			}
			l.scheduler.Settled(time.Now(), batch, result)
		}
	})
}

func (l *loop) processConfirms(now time.Time) {
	l.used = l.sender.results.take(l.used)
	l.instruments.beginRound()
	defer l.instruments.endRound()
	for _, r := range l.used {
		sent := !errors.Is(r.err, errNotSent)
		outcome, decision := Unavailable, dispatch.NotSent
		if sent {
			outcome, decision, r.err = l.classify(r.err)
		}
		if !l.scheduler.Published(now, r.Publish, decision, r.err) {
			continue // the publisher has already reported the result of this publish
		}
		if sent {
			l.instruments.published(r, outcome, now)
		}
		if !l.scheduler.Sending() {
			l.sender.gate.Store(false)
		}
	}
}

// classify returns Unknown and the panic if Config.Classify or a method of err panics.
func (l *loop) classify(err error) (outcome Outcome, decision dispatch.Outcome, cause error) {
	if err == nil {
		return Confirmed, dispatch.Confirmed, nil
	}
	failed := usercode.Run(func() error { // the methods of err are code of the user, too
		outcome = l.config.Classify(err)
		decision = outcome.forScheduler(err)
		return nil
	})
	if failed != nil {
		// Not wrapped, so that the message can count as refused, see cannotRefuse.
		err = errors.New("forwarder: Config.Classify failed: " + failed.Error() + ", for the error: " + err.Error())
		return Unknown, Unknown.forScheduler(err), err
	}
	return outcome, decision, err
}

// begin starts the span of a publish if msg contains a sampled trace, and makes it the parent in
// msg. It does not change m, because the next attempt needs the original metadata.
func (s *sender) begin(m *dispatch.Message, msg *message.Message) trace.Span {
	if s.tracer == nil {
		return nil
	}
	ctx, ok := telemetry.Extract(telemetry.WithSystem(context.Background(), s.system), msg.Metadata)
	if !ok {
		return nil
	}
	ctx, span := s.tracer.Producer(ctx, "forward", "send", m.Topic, trace.SpanContextFromContext(ctx),
		attribute.String(telemetry.MessageID, telemetry.Text(m.ID)),
		attribute.Int(telemetry.BodySize, len(m.Payload)),
		attribute.Int(telemetry.Attempt, m.Attempts+1))
	telemetry.Inject(ctx, msg.Metadata)
	msg.SetContext(ctx)
	return span
}

// The span does not contain the text of the error, because a publisher may include any data in it.
func finish(r result, outcome Outcome) {
	if r.span == nil {
		return
	}
	r.span.SetAttributes(attribute.String(telemetry.Outcome, outcome.String()))
	if outcome != Confirmed {
		r.span.SetStatus(codes.Error, outcome.String())
		r.span.SetAttributes(attribute.String(telemetry.ErrorType, outcome.String()))
	}
	r.span.End()
}

// failures records which kinds of work have logged a failure, to log their next success.
type failures [dispatch.Removing + 1]bool

var schedulerTexts = [...]workTexts{
	dispatch.Reading:    {"The outbox could not be read, trying again", "The outbox could be read again"},
	dispatch.Publishing: {"Messages could not be published, trying again", "Messages could be published again"},
	dispatch.Settling:   {"Outcomes could not be recorded, trying again", "Outcomes could be recorded again"},
	dispatch.Removing: {
		"Rows of sent messages could not be deleted, their slots are paused", "Rows of sent messages could be deleted again",
	},
}

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
		case dispatch.TopicRefused:
			log.Error("The broker takes no messages of a topic, others go on without it", errors.New(clean(n.Err)),
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

func named(id string, metadata []byte, more watermill.LogFields) watermill.LogFields {
	decoded, _ := outboxrow.DecodeMetadata(metadata) // check reports a damaged row
	return meta.LogFields(id, decoded, more)
}

func clean(err error) string { return parkedrows.Clean(err.Error(), 2000) }

type fault struct {
	attempts int
	logged   bool
	until    time.Time // the work is not tried again before this time
}

type workTexts struct{ failed, worked string }

var (
	leaseTexts     = workTexts{"The lease could not be renewed, trying again", "The lease could be renewed again"}
	retentionTexts = workTexts{
		"What was sent long ago could not be deleted, trying again", "What was sent long ago could be deleted again",
	}
)

// failed makes the work wait before it is tried again. Only the first failure is logged, and none
// that another transaction caused, for example by a deadlock.
func (f *fault) failed(l *loop, texts workTexts, err error) {
	if !f.logged && !dialect.Contended(err) {
		f.logged = true
		l.config.Logger.Error(texts.failed, err, nil)
	}
	f.attempts++
	f.until = time.Now().Add(jitter(pauses(f.attempts)))
}

// worked returns true if the work had failed before, and logs the success if a failure was logged.
func (f *fault) worked(l *loop, texts workTexts) (again bool) {
	again = f.attempts > 0
	if f.logged {
		l.config.Logger.Info(texts.worked, nil)
	}
	*f = fault{}
	return again
}

// waits reports whether the work must wait after a failure. Then the loop wakes up in time.
func (f *fault) waits(l *loop, now time.Time) bool {
	if now.Before(f.until) {
		l.wake(f.until)
		return true
	}
	return false
}
