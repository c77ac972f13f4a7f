package deadletter_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
)

func TestSentLogShowsTheWholeMessage(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("m", "key")
		m.Payload = []byte{0, 255, '\n'}
		m.Metadata["a"] = "ü"
		b.publish("topic", m, msg("free", ""))
		b.forward(&publisher{}, time.Hour, forwarder.SendSuccessors)
		require.Equal(b, 2, b.sent())

		listed, err := b.log.List(b.Context(), deadletter.Filter{MessageID: "m"})
		require.NoError(b, err)
		require.Len(b, listed, 1)
		require.Nil(b, listed[0].Payload)
		got, err := b.log.Get(b.Context(), listed[0].ID)
		require.NoError(b, err)
		require.WithinDuration(b, time.Now(), got.CreatedAt, time.Minute)
		require.WithinDuration(b, time.Now(), got.SentAt, time.Minute)
		require.Equal(b, deadletter.SentMessage{
			Message: deadletter.Message{
				ID: got.ID, Position: 1, MessageID: "m", Topic: "topic", OrderingKey: "key", Payload: []byte{0, 255, '\n'}, Size: 3,
				Metadata: message.Metadata{"a": "ü", outbox.OrderingKey: "key"}, CreatedAt: got.CreatedAt,
			},
			SentAt: got.SentAt,
		}, got)
		page, err := b.log.List(b.Context(), deadletter.Filter{AfterID: got.ID - 1, Limit: 1})
		require.NoError(b, err)
		require.Equal(b, got.ID, page[0].ID)
	})
}

func TestSentMessagesAreReplayed(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := described()
		m.Payload = []byte{0, 255}
		b.record("t", m, msg("other", ""))
		only := deadletter.Filter{MessageID: "described"}

		_, forgetful := b.remembering(time.Nanosecond)
		report, err := forgetful.ReplayMatching(b.Context(), ann, only, deadletter.Plan{Rate: 1000})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 1, Skipped: []int64{1}}, report, "consumers do not remember it")
		require.ErrorIs(b, forgetful.Replay(b.Context(), ann, 1), deadletter.ErrNeedsForce)
		require.Empty(b, b.audits())
		require.Zero(b, b.pending())

		report, err = b.log.ReplayMatching(b.Context(), ann, only, deadletter.Plan{})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 1, Replayed: 1}, report)
		require.Equal(b, 2, b.sent(), "the log keeps the message")
		require.Equal(b, 1, b.count(`SELECT COUNT(*) FROM once_outbox WHERE unknown`), "a copy may have been sent")
		require.Equal(b, []string{"ann | replay | sent:1 | described | the queue is back"}, b.audits())
		p := &publisher{}
		b.forward(p, 0, forwarder.SendSuccessors)
		require.Len(b, p.sent, 1)
		require.Equal(b, "described", p.sent[0].UUID)
		require.Equal(b, message.Payload{0, 255}, p.sent[0].Payload)
		require.Equal(b, m.Metadata, unstamped(p.sent[0]))
	})
}

func TestReplayOfSentMessagesByID(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.record("t", msg("a", "key"), msg("b", ""))
		err := b.log.Replay(b.Context(), ann, 2, 4711)
		require.ErrorIs(b, err, deadletter.ErrNotFound)
		require.EqualError(b, err, "deadletter: sent log: replay: sent message 4711: not found")
		require.Zero(b, b.pending())
		require.NoError(b, b.log.Replay(b.Context(), ann, 2, 1))
		require.NoError(b, b.log.Replay(b.Context(), ann, 2), "once more")
		require.Equal(b, 3, b.pending())
		require.Len(b, b.audits(), 3)
	})
}
