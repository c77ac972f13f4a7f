package deadletter_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A row of the sent log may be committed after one with a higher ID. The settled ID
// waits for it.
func TestSettledIDWaitsForEarlierRows(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		id, err := b.log.SettledID(b.Context())
		require.NoError(b, err)
		require.Zero(b, id)
		b.record("t", msg("first", ""), msg("second", ""))
		id, err = b.log.SettledID(b.Context())
		require.NoError(b, err)
		require.EqualValues(b, 2, id)
		if b.sqlite() {
			return
		}

		b.publish("t", msg("slow", ""))
		slow, err := b.db.BeginTx(b.Context(), nil)
		require.NoError(b, err)
		defer func() { _ = slow.Rollback() }()
		for _, query := range []string{ // as a forwarder does it
			`DELETE FROM once_outbox`,
			`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at) VALUES (9, 'slow', 't', '', '{}', now())`,
		} {
			_, err = slow.ExecContext(b.Context(), query)
			require.NoError(b, err)
		}
		b.record("t", msg("quick", ""))
		short, cancel := context.WithTimeout(b.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = b.log.SettledID(short)
		require.ErrorContains(b, err, "has not ended")
		require.NoError(b, slow.Commit())
		id, err = b.log.SettledID(b.Context())
		require.NoError(b, err)
		require.EqualValues(b, 4, id)
	})
}
