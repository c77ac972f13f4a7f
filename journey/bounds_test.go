package journey_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/journey"
)

// A service can have the tables of one side only.
func TestJourneySaysWhichTablesAreMissing(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("orders", msg("m1", "7", ""))
		b.waits("mail", msg("m1", "7", ""))
		if !b.sqlite() {
			b.exec(`DROP VIEW once_parked_messages`)
		}
		for _, table := range []string{"parked", "inbox", "consumers", "audit"} {
			b.exec(`DROP TABLE once_` + table)
		}
		for _, q := range []journey.Query{{MessageID: "m1"}, {AggregateID: "7"}, {Tenant: "acme"}, {MessageID: "m1", Causes: true}} {
			answer := b.find(q)
			require.Len(b, answer.Messages, 1)
			require.Equal(b, []string{"outbox written"}, lines(answer.Messages[0]))
			require.Contains(b, answer.Notes,
				"This database has no table once_parked: it does not know what waits for a consumer or is in quarantine.")
			require.Contains(b, answer.Notes, "This database has no table once_inbox: it does not know what was handled.")
		}
		for _, table := range []string{"outbox", "outbox_dead", "outbox_sent", "blocked_keys"} {
			b.exec(`DROP TABLE once_` + table)
		}
		answer := b.find(journey.Query{MessageID: "m1"})
		require.Empty(b, answer.Messages[0].Events)
		require.Len(b, answer.Notes, 8)
	})
}

func TestJourneyLooksAtABoundedPartOfTheOutbox(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		rows := `SELECT i, 'm' || i, 'orders', 0, '', '{"once_aggregate_id":"7"}' FROM generate_series(1, 40001) AS i`
		if b.sqlite() {
			rows = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40001)
				SELECT i, 'm' || i, 'orders', 0, '', '{"once_aggregate_id":"7"}' FROM n`
		}
		b.exec(`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata) ` + rows)
		const note = "Only the oldest 20000 rows of the outbox were looked at. Raise the number of rows to look at the others."

		near := b.find(journey.Query{MessageID: "m20000", OutboxRows: 1})
		require.Len(b, near.Messages[0].Events, 1)
		require.Equal(b, []string{note}, near.Notes)
		far := b.find(journey.Query{MessageID: "m20001", OutboxRows: 20_000})
		require.Empty(b, far.Messages[0].Events)
		require.Equal(b, []string{note}, far.Notes)
		all := b.find(journey.Query{MessageID: "m40001"})
		require.Len(b, all.Messages[0].Events, 1)
		require.Empty(b, all.Notes)
		latest := b.find(journey.Query{AggregateID: "7", Limit: 2})
		require.Len(b, latest.Messages, 2)
	})
}

func TestBadInputIsRefused(t *testing.T) {
	_, err := journey.New(nil, journey.Config{})
	require.ErrorContains(t, err, "db is nil")
	eachDatabase(t, func(b *bench) {
		for want, q := range map[string]journey.Query{
			"0 of MessageID, AggregateID and Tenant are set": {},
			"2 of MessageID, AggregateID and Tenant are set": {MessageID: "m", Tenant: "t"},
			"AggregateType is set without AggregateID":       {MessageID: "m", AggregateType: "order"},
			"Limit is -1":                   {MessageID: "m", Limit: -1},
			"OutboxRows is -1":              {MessageID: "m", OutboxRows: -1},
			`MessageID is "m\x00": no text`: {MessageID: "m\x00"},
		} {
			_, err := b.journeys.Find(b.Context(), q)
			require.ErrorContains(b, err, "journey: find: ")
			require.ErrorContains(b, err, want)
		}
		b.exec(`DROP TABLE once_inbox`)
		b.exec(`CREATE TABLE once_inbox (other text)`)
		_, err := b.journeys.Find(b.Context(), journey.Query{MessageID: "m"})
		require.ErrorContains(b, err, "journey: find: ")
	})
}
