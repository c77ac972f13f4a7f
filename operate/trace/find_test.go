package trace_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/trace"
)

func TestTraceOverAllTables(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("m1", "7", "m0")
		b.publish("orders", m)
		b.forward()
		b.Exec(`UPDATE once_outbox_sent SET created_at = ` + b.FromNow(-20*time.Second) + `, sent_at = ` + b.FromNow(-10*time.Second))
		b.Exec(`INSERT INTO once_consumers (topic, consumer) VALUES ('orders', 'mail'), ('orders', 'payments')`)
		b.handled("stock", "m1")
		b.Exec(`UPDATE once_inbox SET processed_at = ` + b.FromNow(-5*time.Second))
		entry := b.quarantined(m)
		kit.OK(b, b.quarantine().Discard(b.Context(), operate.Act{Actor: "ann", Why: "void"}, entry))

		found := b.one("m1")
		want := []string{
			"sent log written",
			"sent log sent",
			"inbox stock handled",
			"parked payments stored",
			"parked payments quarantined exhausted card 17 is refused",
			"parked payments discarded",
			"inbox payments entered",
			"audit payments discard ann void",
		}
		if got := sorted(lines(found)); !slices.Equal(got, want) {
			b.Fatalf("sorted is %q, want %q", got, want)
		}
		if found.CausedBy != "m0" {
			b.Fatalf(`found.CausedBy is %q, want "m0"`, found.CausedBy)
		}
		labels := []string{found.Topic, found.Tenant, found.AggregateType, found.AggregateID, found.EventType}
		if want := []string{"orders", "acme", "order", "7", "placed"}; !slices.Equal(labels, want) {
			b.Fatalf("labels are %q, want %q", labels, want)
		}
		states := map[string]trace.State{}
		for _, c := range found.Consumers {
			states[c.Name] = c.State
		}
		wantStates := map[string]trace.State{
			"mail": trace.Unseen, "payments": trace.Discarded, "stock": trace.Handled,
		}
		if !maps.Equal(states, wantStates) {
			b.Fatalf("states are %v, want %v", states, wantStates)
		}
		where := strings.Join(found.Where, " ")
		if want := "The broker confirmed it at "; !strings.Contains(where, want) {
			b.Fatalf("%q does not contain %q", where, want)
		}
		if want := `Consumer "mail" is registered for the topic and has no row of it.`; !strings.Contains(where, want) {
			b.Fatalf("%q does not contain %q", where, want)
		}
		if want := "a message is in the broker, which no table shows"; !strings.Contains(where, want) {
			b.Fatalf("%q does not contain %q", where, want)
		}
		for i, e := range found.Events {
			if got := time.Since(e.At).Minutes(); math.Abs(got) > 1 {
				b.Fatalf("time.Since(e.At).Minutes is %v, want 0, give or take 1: %+v", got, e)
			}
			if i > 0 && e.At.Before(found.Events[i-1].At) {
				b.Fatal("the events are not in order")
			}
		}
	})
}

// sorted moves the line of the inbox of payments to the place before the last line. In
// SQLite, the times of the last events differ by a few milliseconds, so their order is
// not fixed.
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

func TestTraceSaysWhyAMessageWaitsInTheOutbox(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("orders", msg("due", "1", ""), msg("refused", "2", ""), msg("later", "3", ""), msg("second", "4", ""))
		b.Exec(`UPDATE once_outbox SET due_at = ` + b.FromNow(time.Hour) + ` WHERE message_id IN ('refused', 'later')`)
		b.Exec(`UPDATE once_outbox SET failing_since = ` + b.FromNow(-time.Hour) + `, attempts = 3, last_error = 'no queue', unknown = (1 = 1)
			WHERE message_id = 'refused'`)
		b.Exec(`UPDATE once_outbox SET ordering_key = 'k' WHERE message_id = 'second'`)
		b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 99, 0, 'dead')`)
		for id, want := range map[string]struct {
			where, events string
		}{
			"due":     {"a forwarder sends it as soon as it can", "outbox written"},
			"refused": {"did not accept it, and it is tried again at", "outbox failed first no queue, outbox written, outbox due"},
			"later":   {"because its producer delayed it", "outbox written, outbox due"},
			"second":  {"behind the message at position 99, which blocks its ordering key (dead)", "outbox written, outbox blocked dead"},
		} {
			found := b.one(id)
			if got := strings.Join(found.Where, " "); !strings.Contains(got, want.where) {
				b.Fatalf("%s: %q does not contain %q", id, got, want.where)
			}
			if got := strings.Join(lines(found), ", "); got != want.events {
				b.Fatalf("%s: events are %q, want %q", id, got, want.events)
			}
		}
		if got, want := b.one("refused").Where, "An earlier attempt may have sent it all the same."; !slices.Contains(got, want) {
			b.Fatalf(`one("refused").Where is %q, without %q`, got, want)
		}
		if got := b.one("refused").Events[0].Attempts; got != 3 {
			b.Fatalf(`one("refused").Events[0].Attempts is %d, want 3`, got)
		}
	})
}

func TestTraceOfADeadLetterAndOfAnUnknownMessage(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("bad", msg("m1", "7", ""))
		b.forward()
		found := b.one("m1")
		want := []string{"dead letters written", "dead letters given up unacceptable too large"}
		if got := lines(found); !slices.Equal(got, want) {
			b.Fatalf("lines(found) are %q, want %q", got, want)
		}
		if want := []string{"The forwarder gave up on it (unacceptable): it is dead letter 1."}; !slices.Equal(found.Where, want) {
			b.Fatalf("found.Where is %q, want %q", found.Where, want)
		}

		none := b.one("nobody knows me")
		if len(none.Events) != 0 {
			b.Fatalf("none.Events are %+v, want none", none.Events)
		}
		if want := "No table of this database has it."; !strings.Contains(none.Where[0], want) {
			b.Fatalf("%q does not contain %q", none.Where[0], want)
		}
	})
}

// A discarded dead letter has only rows in the audit log.
func TestTraceOfAMessageThatOnlyTheAuditLogHas(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.Exec(`INSERT INTO once_audit (actor, action, subject, message_id, why) VALUES ('ann', 'discard', 'dead:1', 'm1', 'void')`)
		found := b.one("m1")
		if len(found.Events) != 1 || len(found.Where) != 1 || !strings.HasPrefix(found.Where[0], "Only the audit log has it: ") {
			b.Fatalf("events %+v, where %q", found.Events, found.Where)
		}
	})
}

func TestTraceOfParkedMessages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("m1", "7", "")
		b.waits("mail", m)
		entry := b.quarantined(m)
		kit.OK(b, b.quarantine().Replay(b.Context(), operate.Act{Actor: "ann", Why: "fixed"}, entry))
		b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, ordering_key)
			VALUES ('stock', 'orders', 'm1', $1, $1, 'held', `+b.FromNow(0)+`, 'k')`, []byte{1})
		found := b.one("m1")
		text := strings.Join(lines(found), ", ")
		if want := "parked mail failed card 18 is refused"; !strings.Contains(text, want) {
			b.Fatalf("%q does not contain %q", text, want)
		}
		if want := "audit payments replay ann fixed"; !strings.Contains(text, want) {
			b.Fatalf("%q does not contain %q", text, want)
		}
		where := strings.Join(found.Where, " ")
		if want := `Consumer "mail": waiting since `; !strings.Contains(where, want) {
			b.Fatalf("%q does not contain %q", where, want)
		}
		if want := `Consumer "payments": waiting since `; !strings.Contains(where, want) {
			b.Fatalf("%q does not contain %q", where, want)
		}
		if want := `Consumer "stock": held since `; !strings.Contains(where, want) {
			b.Fatalf("%q does not contain %q", where, want)
		}
		if want := "The sent log of this database does not have it"; !strings.Contains(where, want) {
			b.Fatalf("%q does not contain %q", where, want)
		}
		if got := found.Events[len(found.Events)-1].Consumer + " " + found.Events[len(found.Events)-1].What; got != "mail due" {
			b.Fatalf(`the last event is %q, want "mail due"`, got)
		}

		b.handled("payments", "m1") // the row in the outbox is removed later
		for _, c := range b.one("m1").Consumers {
			if handled := c.Name == "payments"; handled != (c.State == trace.Handled) {
				b.Fatalf("%s: the state is %v, want handled: %v", c.Name, c.State, handled)
			}
		}
	})
}

func TestTraceOfAnEditedMessageNamesItsReplacement(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		entry := b.quarantined(msg("m1", "7", ""))
		next, err := b.quarantine().Edit(b.Context(), operate.Act{Actor: "ann", Why: "typo"}, entry, func(m *message.Message) error {
			m.UUID = "m2"
			return nil
		}, quarantine.EditOptions{})
		kit.OK(b, err)
		for id, want := range map[string]string{
			"m1": fmt.Sprintf(`Edited for consumer "payments": message m2 (entry %d) replaces it.`, next),
			"m2": `It replaces message m1 for consumer "payments", which was edited.`,
		} {
			if got := b.one(id).Where; !slices.Contains(got, want) {
				b.Errorf("%s is at %q, want %q", id, got, want)
			}
		}
	})
}

func TestTraceOfAnAggregateAndATenant(t *testing.T) {
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

		finds := func(q trace.Query, want ...string) {
			b.Helper()
			got := strings.Fields(ids(b.find(q).Messages))
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				b.Fatalf("%+v finds %q, want %q", q, got, want)
			}
		}
		finds(trace.Query{AggregateType: "order", AggregateID: "7"}, all...)
		finds(trace.Query{AggregateID: "7"}, append([]string{"stranger"}, all...)...)
		finds(trace.Query{AggregateType: "Order", AggregateID: "7"})
		finds(trace.Query{Tenant: "acme"}, append([]string{"other"}, all...)...)
		finds(trace.Query{Tenant: "other"}, "stranger")

		// With a limit, Find returns the latest messages.
		b.Exec(`UPDATE once_outbox_sent SET created_at = ` + b.FromNow(-time.Hour))
		few := b.find(trace.Query{AggregateType: "order", AggregateID: "7", Limit: 4})
		if len(few.Messages) != 4 {
			b.Fatalf("%d messages, want 4: %+v", len(few.Messages), few.Messages)
		}
		if got := ids(few.Messages); strings.Contains(got, "sent") {
			b.Fatalf(`%q contains "sent"`, got)
		}
		if want := "More messages match than the limit of 4: the others are left out."; !slices.Contains(few.Notes, want) {
			b.Fatalf("few.Notes are %q, without %q", few.Notes, want)
		}
	})
}

func TestTraceFollowsCauses(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("orders", msg("root", "1", ""))
		b.publish("bad", msg("a", "2", "root"))
		b.forward()
		b.publish("orders", msg("b", "3", "root"), msg("ab", "4", "a"), msg("loop", "5", "loop"), msg("else", "6", "other"))
		b.quarantined(msg("abq", "7", "ab"))
		b.waits("payments", msg("abw", "8", "ab"))
		b.Exec(`UPDATE once_outbox_dead SET created_at = ` + b.FromNow(-time.Hour))
		b.Exec(`UPDATE once_parked SET created_at = ` + b.FromNow(-time.Minute) + ` WHERE message_id = 'abq'`)

		answer := b.find(trace.Query{MessageID: "root", Causes: true})
		if got, want := ids(answer.Messages), "root .a ..ab ...abq ...abw .b"; got != want {
			b.Fatalf("ids(answer.Messages) is %q, want %q", got, want)
		}
		if answer.Messages[3].CausedBy != "ab" {
			b.Fatalf(`answer.Messages[3].CausedBy is %q, want "ab"`, answer.Messages[3].CausedBy)
		}
		if got := ids(b.find(trace.Query{MessageID: "root"}).Messages); got != "root" {
			b.Fatalf(`ids is %q, want "root"`, got)
		}
		if got := ids(b.find(trace.Query{MessageID: "loop", Causes: true}).Messages); got != "loop" {
			b.Fatalf(`ids is %q, want "loop"`, got)
		}
		bounded := b.find(trace.Query{MessageID: "root", Causes: true, Limit: 3})
		if len(bounded.Messages) != 3 {
			b.Fatalf("%d messages, want 3: %+v", len(bounded.Messages), bounded.Messages)
		}
		if got := strings.Join(bounded.Notes, " "); !strings.Contains(got, "the limit of 3") {
			b.Fatalf(`%q does not contain "the limit of 3"`, got)
		}
	})
}
