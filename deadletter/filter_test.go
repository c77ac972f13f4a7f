package deadletter_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/outbox"
)

// filters returns two Filters for each field. The first one matches the result of
// described(), and the second one does not.
func filters(id int64) map[string][2]deadletter.Filter {
	type filter = deadletter.Filter
	return map[string][2]filter{
		"IDs":           {{IDs: []int64{id}}, {IDs: []int64{}}},
		"MessageID":     {{MessageID: "described"}, {MessageID: "Described"}},
		"Topic":         {{Topic: "t"}, {Topic: "other"}},
		"OrderingKey":   {{OrderingKey: `it's "k"`}, {OrderingKey: "k"}},
		"Tenant":        {{Tenant: `"acme'`}, {Tenant: "other"}},
		"AggregateType": {{AggregateType: "order"}, {AggregateType: "7"}},
		"AggregateID":   {{AggregateID: "7"}, {AggregateID: "order"}},
		"EventType":     {{EventType: "placed"}, {EventType: "place_"}},
		"two fields":    {{Topic: "t", Tenant: `"acme'`}, {Topic: "t", Tenant: "other"}},
	}
}

func described() *message.Message {
	m := msg("described", `it's "k"`)
	outbox.SetTenant(m, `"acme'`)
	outbox.SetAggregate(m, "order", "7", 1)
	outbox.SetEventType(m, "placed")
	return m
}

func TestFilterOfLetters(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(described())
		b.insertDead(msg("bare", ""))
		b.exec(`UPDATE once_outbox_dead SET topic = 'bare', reason = 'unacceptable' WHERE message_id = 'bare'`)
		b.age("once_outbox_dead", "died_at", 2*time.Hour, `message_id = 'bare'`)
		odd := `null`
		if b.sqlite() {
			odd = `not JSON`
		}
		b.exec(`UPDATE once_outbox_dead SET metadata = '` + odd + `' WHERE message_id = 'bare'`)

		all := filters(1)
		all["Reason"] = [2]deadletter.Filter{{Reason: deadletter.ReasonExhausted}, {Reason: deadletter.ReasonMalformed}}
		all["Fingerprint"] = [2]deadletter.Filter{{Fingerprint: "exhausted: no queue"}, {Fingerprint: "exhausted: no"}}
		now := time.Now()
		all["FailedAfter"] = [2]deadletter.Filter{{FailedAfter: now.Add(-time.Hour)}, {FailedAfter: now.Add(time.Hour)}}
		all["FailedBefore"] = [2]deadletter.Filter{{FailedBefore: now.Add(time.Hour)}, {FailedBefore: now.Add(-time.Hour)}}
		all["UntilID"] = [2]deadletter.Filter{{UntilID: 1}, {AfterID: 1, UntilID: 1}}
		all["AfterID"] = [2]deadletter.Filter{{MessageID: "described"}, {AfterID: 2}}
		for name, pair := range all {
			for i, f := range pair {
				found, err := b.letters.List(b.Context(), f)
				if err != nil {
					b.Fatalf("%s: %v", name, err)
				}
				n, err := b.letters.Count(b.Context(), f)
				if err != nil {
					b.Fatalf("%s: %v", name, err)
				}
				if len(found.Letters) != n.N {
					b.Fatalf("%s: len(found) is %d, want %d: %+v", name, len(found.Letters), n.N, found.Letters)
				}
				switch {
				case name == "FailedBefore" && i == 0:
					if len(found.Letters) != 2 {
						b.Fatalf("len(found) is %d, want 2: %+v", len(found.Letters), found.Letters)
					}
				case name == "FailedBefore":
					if found.Letters[0].MessageID != "bare" {
						b.Fatalf(`found[0].MessageID is %q, want "bare"`, found.Letters[0].MessageID)
					}
					if len(found.Letters[0].Metadata) != 0 {
						b.Fatalf("found[0].Metadata is %v, want none", found.Letters[0].Metadata)
					}
				case i == 0:
					if len(found.Letters) != 1 {
						b.Fatalf("%s: len(found) is %d, want 1: %+v", name, len(found.Letters), found.Letters)
					}
					if found.Letters[0].MessageID != "described" {
						b.Fatalf(`%s: found[0].MessageID is %q, want "described"`, name, found.Letters[0].MessageID)
					}
				default:
					if len(found.Letters) != 0 {
						b.Fatalf("%s: found is %+v, want none", name, found.Letters)
					}
				}
			}
		}
	})
}

func TestFilterOfTheSentLog(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.record("t", described())
		b.record("bare", msg("bare", ""))
		b.age("once_outbox_sent", "sent_at", 10*time.Minute, `message_id = 'bare'`) // not in the order of the IDs
		all := filters(1)
		early := time.Now().Add(-5 * time.Minute)
		all["SentAfter"] = [2]deadletter.Filter{{SentAfter: early}, {SentAfter: early.Add(time.Hour)}}
		all["SentBefore"] = [2]deadletter.Filter{{SentAfter: early, SentBefore: early.Add(time.Hour)}, {SentBefore: early.Add(-time.Hour)}}
		for name, pair := range all {
			for i, f := range pair {
				page, err := b.log.List(b.Context(), f)
				if err != nil {
					b.Fatalf("%s: %v", name, err)
				}
				found := page.Messages
				n, err := b.log.Count(b.Context(), f)
				if err != nil {
					b.Fatalf("%s: %v", name, err)
				}
				if len(found) != n.N {
					b.Fatalf("%s: len(found) is %d, want %d: %+v", name, len(found), n.N, found)
				}
				if len(found) != 1-i {
					b.Fatalf("%s: len(found) is %d, want %d: %+v", name, len(found), 1-i, found)
				}
				if i == 0 {
					if found[0].MessageID != "described" {
						b.Fatalf(`%s: found[0].MessageID is %q, want "described"`, name, found[0].MessageID)
					}
				}
			}
		}
		old := b.sentPage(deadletter.Filter{SentBefore: early}).Messages
		if len(old) != 1 {
			b.Fatalf("len(old) is %d, want 1: %+v", len(old), old)
		}
		if old[0].MessageID != "bare" {
			b.Fatalf(`old[0].MessageID is %q, want "bare"`, old[0].MessageID)
		}
	})
}
