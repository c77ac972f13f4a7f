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

func TestLetterShowsTheWholeMessage(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("bad", "key")
		m.Payload = []byte{0, 255, '\n'}
		m.Metadata["a"] = "ü"
		b.publish("topic", m, msg("free", ""))
		b.forward(&publisher{refuse: true}, 0, forwarder.BlockKey)

		listed, err := b.letters.List(b.Context(), deadletter.Filter{MessageID: "bad"})
		require.NoError(b, err)
		require.Len(b, listed, 1)
		require.Nil(b, listed[0].Payload)
		got, err := b.letters.Get(b.Context(), listed[0].ID)
		require.NoError(b, err)
		require.WithinDuration(b, time.Now(), got.CreatedAt, time.Minute)
		require.WithinDuration(b, time.Now(), got.LastFailedAt, time.Minute)
		require.Equal(b, deadletter.Letter{
			Message: deadletter.Message{
				ID: got.ID, Position: 1, MessageID: "bad", Topic: "topic", OrderingKey: "key", Payload: []byte{0, 255, '\n'}, Size: 3,
				Metadata: message.Metadata{"a": "ü", outbox.OrderingKey: "key"}, CreatedAt: got.CreatedAt,
			},
			Attempts: 1, Error: "too large", Reason: deadletter.ReasonUnacceptable, BlocksKey: true, LastFailedAt: got.LastFailedAt,
		}, got)

		free, err := b.letters.List(b.Context(), deadletter.Filter{MessageID: "free"})
		require.NoError(b, err)
		require.False(b, free[0].BlocksKey)
		require.Empty(b, free[0].OrderingKey)
	})
}

func TestGetOfAnUnknownID(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		_, err := b.letters.Get(b.Context(), 4711)
		require.ErrorIs(b, err, deadletter.ErrNotFound)
		require.EqualError(b, err, "deadletter: get: dead letter 4711: not found")
		_, err = b.log.Get(b.Context(), -1)
		require.EqualError(b, err, "deadletter: sent log: get: sent message -1: not found")
	})
}

func TestGetOfAnEmptyPayload(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(message.NewMessage("empty", message.Payload{}))
		got, err := b.letters.Get(b.Context(), 1)
		require.NoError(b, err)
		require.NotNil(b, got.Payload, "nil would say that the payload was not read")
		require.Empty(b, got.Payload)
	})
}

func TestListReturnsPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(102)...)
		all, err := b.letters.List(b.Context(), deadletter.Filter{})
		require.NoError(b, err)
		require.Len(b, all, 100)
		rest, err := b.letters.List(b.Context(), deadletter.Filter{AfterID: all[99].ID})
		require.NoError(b, err)
		require.Equal(b, []string{"100", "101"}, []string{rest[0].MessageID, rest[1].MessageID})
		two, err := b.letters.List(b.Context(), deadletter.Filter{Limit: 2})
		require.NoError(b, err)
		require.Len(b, two, 2)
		n, err := b.letters.Count(b.Context(), deadletter.Filter{Limit: 1, AfterID: all[0].ID})
		require.NoError(b, err)
		require.Equal(b, 101, n, "Count ignores the Limit")
	})
}
