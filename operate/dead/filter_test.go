package dead_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// filters returns two Filters for each field. The first one matches the result of
// described(), and the second one does not.
func filters(id int64) map[string][2]operate.Filter {
	type filter = operate.Filter
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
		b.Exec(`UPDATE once_outbox_dead SET topic = 'bare', reason = 'unacceptable', fingerprint = 'unacceptable: no queue'
			WHERE message_id = 'bare'`)
		b.age("once_outbox_dead", "died_at", 2*time.Hour, `message_id = 'bare'`)
		odd := `null`
		if b.SQLite() {
			odd = `not JSON`
		}
		b.Exec(`UPDATE once_outbox_dead SET metadata = '` + odd + `' WHERE message_id = 'bare'`)

		all := filters(1)
		all["Reason"] = [2]operate.Filter{{Reason: dead.ReasonExhausted}, {Reason: dead.ReasonMalformed}}
		all["Fingerprint"] = [2]operate.Filter{{Fingerprint: "exhausted: no queue"}, {Fingerprint: "exhausted: no"}}
		now := time.Now()
		all["FailedAfter"] = [2]operate.Filter{{FailedAfter: now.Add(-time.Hour)}, {FailedAfter: now.Add(time.Hour)}}
		all["FailedBefore"] = [2]operate.Filter{{FailedBefore: now.Add(time.Hour)}, {FailedBefore: now.Add(-time.Hour)}}
		all["UntilID"] = [2]operate.Filter{{UntilID: 1}, {AfterID: 1, UntilID: 1}}
		all["AfterID"] = [2]operate.Filter{{MessageID: "described"}, {AfterID: 2}}
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
				if len(found.Rows) != n.N {
					b.Fatalf("%s: len(found) is %d, want %d: %+v", name, len(found.Rows), n.N, found.Rows)
				}
				switch {
				case name == "FailedBefore" && i == 0:
					if len(found.Rows) != 2 {
						b.Fatalf("len(found) is %d, want 2: %+v", len(found.Rows), found.Rows)
					}
				case name == "FailedBefore":
					if found.Rows[0].MessageID != "bare" {
						b.Fatalf(`found[0].MessageID is %q, want "bare"`, found.Rows[0].MessageID)
					}
					if len(found.Rows[0].Metadata) != 0 {
						b.Fatalf("found[0].Metadata is %v, want none", found.Rows[0].Metadata)
					}
				case i == 0:
					if len(found.Rows) != 1 {
						b.Fatalf("%s: len(found) is %d, want 1: %+v", name, len(found.Rows), found.Rows)
					}
					if found.Rows[0].MessageID != "described" {
						b.Fatalf(`%s: found[0].MessageID is %q, want "described"`, name, found.Rows[0].MessageID)
					}
				default:
					if len(found.Rows) != 0 {
						b.Fatalf("%s: found is %+v, want none", name, found.Rows)
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
		all["SentAfter"] = [2]operate.Filter{{SentAfter: early}, {SentAfter: early.Add(time.Hour)}}
		all["SentBefore"] = [2]operate.Filter{{SentAfter: early, SentBefore: early.Add(time.Hour)}, {SentBefore: early.Add(-time.Hour)}}
		for name, pair := range all {
			for i, f := range pair {
				page, err := b.log.List(b.Context(), f)
				if err != nil {
					b.Fatalf("%s: %v", name, err)
				}
				found := page.Rows
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
		old := b.sentPage(operate.Filter{SentBefore: early}).Rows
		if len(old) != 1 {
			b.Fatalf("len(old) is %d, want 1: %+v", len(old), old)
		}
		if old[0].MessageID != "bare" {
			b.Fatalf(`old[0].MessageID is %q, want "bare"`, old[0].MessageID)
		}
	})
}

func TestConfigIsValidated(t *testing.T) {
	bad := operate.Config{Schema: schema.Config{Prefix: "-"}, InboxRetention: -1}
	_, err := dead.New(nil, bad)
	for _, part := range []string{"dead: db is nil", "dead: schema: Prefix", "dead: InboxRetention is -1ns: negative"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("got %v, want an error with %q", err, part)
		}
	}
	if _, err := dead.NewSentLog(nil, bad); err == nil || !strings.Contains(err.Error(), "InboxRetention") {
		t.Fatalf(`NewSentLog: got %v, want an error with "InboxRetention"`, err)
	}
}

// calls makes each call that takes a Filter and changes letters, or previews such a
// change. It returns the errors by call.
func calls(b *bench, act operate.Act, f operate.Filter, plan operate.Plan) map[string]error {
	_, replay := b.letters.ReplayMatching(b.Context(), act, f, plan)
	_, discard := b.letters.DiscardMatching(b.Context(), act, f)
	_, dryRun := b.letters.DryRun(b.Context(), f, plan)
	return map[string]error{"replay": replay, "discard": discard, "dry run": dryRun}
}

func TestBadFiltersAreRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""))
		b.record("t", msg("a", ""))
		at := time.UnixMilli(2)
		bad := map[string]operate.Filter{
			"Limit is -1":                 {All: true, Limit: -1},
			"UntilID is -2":               {All: true, UntilID: -2},
			"AfterID is -1":               {All: true, AfterID: -1},
			"All is set":                  {All: true, Topic: "t"},
			`Reason is "misspelt"`:        {Reason: "misspelt"},
			"SentAfter or SentBefore":     {SentAfter: time.Now()},
			"FailedBefore is not after":   {FailedAfter: at, FailedBefore: at},
			"AfterGroup is set":           {Topic: "t", AfterGroup: "a"},
			"Filter has no condition":     {},
			"set All":                     {AfterID: 1, Limit: 1},
			"SentBefore is not after Sen": {SentAfter: at, SentBefore: at},
		}
		for text, f := range bad {
			for name, err := range calls(b, ann, f, operate.Plan{}) {
				if err == nil || !strings.Contains(err.Error(), text) {
					b.Fatalf("%s: got %v, want an error with %q", name, err, text)
				}
				if err == nil || !strings.Contains(err.Error(), "dead: "+name+": ") {
					b.Fatalf("%s: got %v, want an error with %q", name, err, "dead: "+name+": ")
				}
			}
			if text == "Filter has no condition" || text == "set All" {
				continue // calls that change nothing accept these
			}
			_, err := b.letters.List(b.Context(), f)
			if err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("got %v, want an error with %q", err, text)
			}
			if _, err := b.letters.Count(b.Context(), f); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("Count: got %v, want an error with %q", err, text)
			}
			if _, err := b.letters.Export(b.Context(), f, io.Discard); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("Export: got %v, want an error with %q", err, text)
			}
			if f.AfterGroup == "" {
				if _, err := b.letters.Groups(b.Context(), f); err == nil || !strings.Contains(err.Error(), text) {
					b.Fatalf("Groups: got %v, want an error with %q", err, text)
				}
			}
		}
		for text, f := range map[string]operate.Filter{
			`Reason is "exhausted": sent messages have no such field`: {Reason: dead.ReasonExhausted},
			`Fingerprint is "a": sent messages have no such field`:    {Fingerprint: "a"},
			"FailedBefore":                  {FailedBefore: at},
			"SentBefore is not after SentA": {SentAfter: at, SentBefore: at},
			"AfterGroup":                    {Topic: "t", AfterGroup: "a"},
		} {
			_, err := b.log.List(b.Context(), f)
			if err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("got %v, want an error with %q", err, text)
			}
			if _, err := b.log.Count(b.Context(), f); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("Count: got %v, want an error with %q", err, text)
			}
			if _, err := b.log.DryRun(b.Context(), f, operate.Plan{}); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("DryRun: got %v, want an error with %q", err, text)
			}
			if _, err := b.log.ReplayMatching(b.Context(), ann, f, operate.Plan{}); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("ReplayMatching: got %v, want an error with %q", err, text)
			}
			if _, err := b.log.Export(b.Context(), f, io.Discard); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("Export: got %v, want an error with %q", err, text)
			}
		}
		want := "dead: sent log: replay: the Filter has no condition"
		_, err := b.log.ReplayMatching(b.Context(), ann, operate.Filter{}, operate.Plan{})
		if err == nil || !strings.Contains(err.Error(), want) {
			b.Fatalf("ReplayMatching: got %v, want an error with %q", err, want)
		}
		for name, err := range calls(b, ann, operate.Filter{IDs: []int64{}}, operate.Plan{}) {
			if err != nil {
				b.Fatalf("a list without elements is a condition: %s: %v", name, err)
			}
		}
		b.wantDead(1)
		b.wantPending(0)
		if got := b.Audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
	})
}

func TestBadActsAreRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""))
		b.record("t", msg("a", ""))
		nobody, silent := operate.Act{Why: "because"}, operate.Act{Actor: "ann"}
		_, replay := b.letters.ReplayMatching(b.Context(), nobody, everything, operate.Plan{})
		_, discard := b.letters.DiscardMatching(b.Context(), nobody, everything)
		_, sent := b.log.ReplayMatching(b.Context(), nobody, everything, operate.Plan{})
		_, resume := b.letters.Resume(b.Context(), nobody, 1, nil)
		_, resumeSent := b.log.Resume(b.Context(), nobody, 1, nil)
		for _, err := range []error{
			resume, resumeSent, replay, discard, sent, b.letters.Replay(b.Context(), nobody, 1), b.letters.Discard(b.Context(), nobody, 1),
			b.letters.Release(b.Context(), nobody, "key"), b.log.Replay(b.Context(), nobody, 1),
		} {
			if err == nil || !strings.Contains(err.Error(), "Actor is empty") {
				b.Fatalf(`got %v, want an error with "Actor is empty"`, err)
			}
		}
		_, discard = b.letters.DiscardMatching(b.Context(), silent, everything)
		if discard == nil || !strings.Contains(discard.Error(), "Why is empty") {
			b.Fatalf(`got %v, want an error with "Why is empty"`, discard)
		}
		if err := b.letters.Discard(b.Context(), silent, 1); err == nil || !strings.Contains(err.Error(), "Why is empty") {
			b.Fatalf(`Discard: got %v, want an error with "Why is empty"`, err)
		}
		for _, err := range []error{
			b.letters.Replay(b.Context(), ann), b.letters.Discard(b.Context(), ann), b.log.Replay(b.Context(), ann),
		} {
			if err == nil || !strings.Contains(err.Error(), "no IDs") {
				b.Fatalf(`got %v, want an error with "no IDs"`, err)
			}
		}
		_, rate := b.letters.ReplayMatching(b.Context(), ann, everything, operate.Plan{Rate: -1})
		if rate == nil || !strings.Contains(rate.Error(), "Plan.Rate is -1: negative") {
			b.Fatalf(`got %v, want an error with "Plan.Rate is -1: negative"`, rate)
		}
		_, rate = b.log.DryRun(b.Context(), everything, operate.Plan{Rate: -1})
		if rate == nil || !strings.Contains(rate.Error(), "Plan.Rate") {
			b.Fatalf(`got %v, want an error with "Plan.Rate"`, rate)
		}
		for _, plan := range []operate.Plan{{Canary: 1}, {Window: 1}, {StopOnFailure: true}} {
			_, err := b.letters.ReplayMatching(b.Context(), ann, everything, plan)
			if err == nil || !strings.Contains(err.Error(), "Canary, Window or StopOnFailure is set") {
				b.Fatalf(`got %v, want an error with "Canary, Window or StopOnFailure is set"`, err)
			}
			_, err = b.letters.DryRun(b.Context(), everything, plan)
			if err == nil || !strings.Contains(err.Error(), "Canary, Window or StopOnFailure is set") {
				b.Fatalf(`got %v, want an error with "Canary, Window or StopOnFailure is set"`, err)
			}
			_, err = b.log.ReplayMatching(b.Context(), ann, everything, plan)
			if err == nil || !strings.Contains(err.Error(), "Canary, Window or StopOnFailure is set") {
				b.Fatalf(`got %v, want an error with "Canary, Window or StopOnFailure is set"`, err)
			}
		}
		b.wantDead(1)
		b.wantPending(0)
		if got := b.Audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
	})
}
