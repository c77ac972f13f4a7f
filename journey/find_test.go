package journey_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/journey"
	"github.com/watermill-once/once/poison"
)

func TestJourneyOverAllTables(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("m1", "7", "m0")
		b.publish("orders", m)
		b.forward()
		b.exec(`UPDATE once_outbox_sent SET created_at = ` + b.in(-20*time.Second) + `, sent_at = ` + b.in(-10*time.Second))
		b.exec(`INSERT INTO once_consumers (topic, consumer) VALUES ('orders', 'mail'), ('orders', 'payments')`)
		b.handled("stock", "m1")
		b.exec(`UPDATE once_inbox SET processed_at = ` + b.in(-5*time.Second))
		entry := b.quarantined(m)
		require.NoError(b, b.quarantine().Discard(b.Context(), poison.Act{Actor: "ann", Why: "void"}, entry))

		found := b.one("m1")
		require.Equal(b, []string{
			"sent log written",
			"sent log sent",
			"inbox stock handled",
			"parked payments stored",
			"parked payments quarantined exhausted card 17 is refused",
			"parked payments discarded",
			"inbox payments entered",
			"audit payments discard ann void",
		}, sorted(lines(found)))
		require.Equal(b, "m0", found.CausedBy)
		require.Equal(b, []string{"orders", "acme", "order", "7", "placed"},
			[]string{found.Topic, found.Tenant, found.AggregateType, found.AggregateID, found.EventType})
		states := map[string]journey.State{}
		for _, c := range found.Consumers {
			states[c.Name] = c.State
		}
		require.Equal(b, map[string]journey.State{
			"mail": journey.Unseen, "payments": journey.Discarded, "stock": journey.Handled,
		}, states)
		where := strings.Join(found.Where, " ")
		require.Contains(b, where, "The broker confirmed it at ")
		require.Contains(b, where, `Consumer "mail" is registered for the topic and has no row of it.`)
		require.Contains(b, where, "a message is in the broker, which no table shows")
		for i, e := range found.Events {
			require.InDelta(b, 0, time.Since(e.At).Minutes(), 1, "%+v", e)
			require.False(b, i > 0 && e.At.Before(found.Events[i-1].At), "the events are not in order")
		}
	})
}

// sorted moves the events of one moment, which SQLite writes within a few
// milliseconds of each other, into one order.
func sorted(lines []string) []string {
	for i, line := range lines {
		if strings.HasPrefix(line, "inbox payments") {
			rest := append(append([]string{}, lines[:i]...), lines[i+1:]...)
			last := len(rest) - 1
			return append(append(rest[:last:last], line), rest[last])
		}
	}
	return lines
}

func TestJourneySaysWhyAMessageWaitsInTheOutbox(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("orders", msg("due", "1", ""), msg("refused", "2", ""), msg("later", "3", ""), msg("second", "4", ""))
		b.exec(`UPDATE once_outbox SET due_at = ` + b.in(time.Hour) + ` WHERE message_id IN ('refused', 'later')`)
		b.exec(`UPDATE once_outbox SET failing_since = ` + b.in(-time.Hour) + `, attempts = 3, last_error = 'no queue', unknown = (1 = 1)
			WHERE message_id = 'refused'`)
		b.exec(`UPDATE once_outbox SET ordering_key = 'k' WHERE message_id = 'second'`)
		b.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 99, 0, 'dead')`)
		for id, want := range map[string]struct {
			where, events string
		}{
			"due":     {"a forwarder sends it as soon as it can", "outbox written"},
			"refused": {"did not accept it, and it is tried again at", "outbox failed first no queue, outbox written, outbox due"},
			"later":   {"because its producer delayed it", "outbox written, outbox due"},
			"second":  {"behind the message at position 99, which blocks its ordering key (dead)", "outbox written, outbox blocked dead"},
		} {
			found := b.one(id)
			require.Contains(b, strings.Join(found.Where, " "), want.where, id)
			require.Equal(b, want.events, strings.Join(lines(found), ", "), id)
		}
		require.Contains(b, b.one("refused").Where, "An earlier attempt may have sent it all the same.")
		require.Equal(b, 3, b.one("refused").Events[0].Attempts)
	})
}

func TestJourneyOfADeadLetterAndOfAnUnknownMessage(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("bad", msg("m1", "7", ""))
		b.forward()
		found := b.one("m1")
		require.Equal(b, []string{"dead letters written", "dead letters given up unacceptable too large"}, lines(found))
		require.Equal(b, []string{"The forwarder gave up on it (unacceptable): it is dead letter 1."}, found.Where)

		none := b.one("nobody knows me")
		require.Empty(b, none.Events)
		require.Contains(b, none.Where[0], "No table of this database has it.")
	})
}

func TestJourneyOfParkedMessages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("m1", "7", "")
		b.waits("mail", m)
		entry := b.quarantined(m)
		require.NoError(b, b.quarantine().Replay(b.Context(), poison.Act{Actor: "ann", Why: "fixed"}, entry))
		b.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, ordering_key)
			VALUES ('stock', 'orders', 'm1', $1, $1, 'held', `+b.in(0)+`, 'k')`, []byte{1})
		found := b.one("m1")
		text := strings.Join(lines(found), ", ")
		require.Contains(b, text, "parked mail failed card 18 is refused")
		require.Contains(b, text, "audit payments replay ann fixed")
		where := strings.Join(found.Where, " ")
		require.Contains(b, where, `Consumer "mail": waiting since `)
		require.Contains(b, where, `Consumer "payments": waiting since `)
		require.Contains(b, where, `Consumer "stock": held since `)
		require.Contains(b, where, "The sent log of this database does not have it")
		require.Equal(b, "mail due", found.Events[len(found.Events)-1].Consumer+" "+found.Events[len(found.Events)-1].What)

		b.handled("payments", "m1") // and the row is removed later
		for _, c := range b.one("m1").Consumers {
			require.Equal(b, c.Name == "payments", c.State == journey.Handled, c.Name)
		}
	})
}

func TestJourneysOfAnAggregateAndATenant(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("orders", msg("sent", "7", ""))
		b.publish("bad", msg("dead", "7", ""))
		b.forward()
		b.publish("orders", msg("pending", "7", ""), msg("other", "8", ""))
		b.quarantined(msg("poisoned", "7", ""))
		b.waits("payments", msg("waiting", "7", ""))
		stranger := msg("stranger", "7", "")
		stranger.Metadata["once_tenant_id"] = "other"
		stranger.Metadata["once_aggregate_type"] = "stock"
		b.waits("payments", stranger)
		all := []string{"sent", "dead", "pending", "poisoned", "waiting"}

		got := func(q journey.Query) []string {
			answer := b.find(q)
			return strings.Fields(ids(answer.Messages))
		}
		require.ElementsMatch(b, all, got(journey.Query{AggregateType: "order", AggregateID: "7"}))
		require.ElementsMatch(b, append([]string{"stranger"}, all...), got(journey.Query{AggregateID: "7"}))
		require.Empty(b, got(journey.Query{AggregateType: "Order", AggregateID: "7"}))
		require.ElementsMatch(b, append([]string{"other"}, all...), got(journey.Query{Tenant: "acme"}))
		require.Equal(b, []string{"stranger"}, got(journey.Query{Tenant: "other"}))

		// The latest ones are kept.
		b.exec(`UPDATE once_outbox_sent SET created_at = ` + b.in(-time.Hour))
		few := b.find(journey.Query{AggregateType: "order", AggregateID: "7", Limit: 4})
		require.Len(b, few.Messages, 4)
		require.NotContains(b, ids(few.Messages), "sent")
		require.Contains(b, few.Notes, "More messages match than the limit of 4: the others are left out.")
	})
}

func TestJourneyFollowsCauses(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("orders", msg("root", "1", ""))
		b.publish("bad", msg("a", "2", "root"))
		b.forward()
		b.publish("orders", msg("b", "3", "root"), msg("ab", "4", "a"), msg("loop", "5", "loop"), msg("else", "6", "other"))
		b.quarantined(msg("abq", "7", "ab"))
		b.waits("payments", msg("abw", "8", "ab"))
		b.exec(`UPDATE once_outbox_dead SET created_at = ` + b.in(-time.Hour))
		b.exec(`UPDATE once_parked SET created_at = ` + b.in(-time.Minute) + ` WHERE message_id = 'abq'`)

		answer := b.find(journey.Query{MessageID: "root", Causes: true})
		require.Equal(b, "root .a ..ab ...abq ...abw .b", ids(answer.Messages))
		require.Equal(b, "ab", answer.Messages[3].CausedBy)
		require.Equal(b, "root", ids(b.find(journey.Query{MessageID: "root"}).Messages))
		require.Equal(b, "loop", ids(b.find(journey.Query{MessageID: "loop", Causes: true}).Messages))
		bounded := b.find(journey.Query{MessageID: "root", Causes: true, Limit: 3})
		require.Len(b, bounded.Messages, 3)
		require.Contains(b, strings.Join(bounded.Notes, " "), "the limit of 3")
	})
}
