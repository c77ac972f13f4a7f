package deadletter_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/schema"
)

func TestConfigIsValidated(t *testing.T) {
	bad := deadletter.Config{Schema: schema.Config{Prefix: "-"}, InboxRetention: -1}
	_, err := deadletter.New(nil, bad)
	for _, part := range []string{"deadletter: db is nil", "deadletter: schema: Prefix", "deadletter: InboxRetention is -1ns: negative"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("got %v, want an error with %q", err, part)
		}
	}
	if _, err := deadletter.NewSentLog(nil, bad); err == nil || !strings.Contains(err.Error(), "InboxRetention") {
		t.Fatalf(`NewSentLog: got %v, want an error with "InboxRetention"`, err)
	}
}

// calls makes each call that takes a Filter and changes letters, or previews such a
// change. It returns the errors by call.
func calls(b *bench, act deadletter.Act, f deadletter.Filter, plan deadletter.Plan) map[string]error {
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
		bad := map[string]deadletter.Filter{
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
			for name, err := range calls(b, ann, f, deadletter.Plan{}) {
				if err == nil || !strings.Contains(err.Error(), text) {
					b.Fatalf("%s: got %v, want an error with %q", name, err, text)
				}
				if err == nil || !strings.Contains(err.Error(), "deadletter: "+name+": ") {
					b.Fatalf("%s: got %v, want an error with %q", name, err, "deadletter: "+name+": ")
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
		for text, f := range map[string]deadletter.Filter{
			"Reason or Fingerprint":         {Reason: deadletter.ReasonExhausted},
			"Reason or Fingerprint is":      {Fingerprint: "a"},
			"FailedAfter or FailedBefore":   {FailedBefore: at},
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
			if _, err := b.log.DryRun(b.Context(), f, deadletter.Plan{}); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("DryRun: got %v, want an error with %q", err, text)
			}
			if _, err := b.log.ReplayMatching(b.Context(), ann, f, deadletter.Plan{}); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("ReplayMatching: got %v, want an error with %q", err, text)
			}
			if _, err := b.log.Export(b.Context(), f, io.Discard); err == nil || !strings.Contains(err.Error(), text) {
				b.Fatalf("Export: got %v, want an error with %q", err, text)
			}
		}
		want := "deadletter: sent log: replay: the Filter has no condition"
		_, err := b.log.ReplayMatching(b.Context(), ann, deadletter.Filter{}, deadletter.Plan{})
		if err == nil || !strings.Contains(err.Error(), want) {
			b.Fatalf("ReplayMatching: got %v, want an error with %q", err, want)
		}
		for name, err := range calls(b, ann, deadletter.Filter{IDs: []int64{}}, deadletter.Plan{}) {
			if err != nil {
				b.Fatalf("a list without elements is a condition: %s: %v", name, err)
			}
		}
		if got := b.dead(); got != 1 {
			b.Fatalf("dead is %d, want 1", got)
		}
		if got := b.pending(); got != 0 {
			b.Fatalf("pending is %d, want 0", got)
		}
		if got := b.audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
	})
}

func TestBadActsAreRefused(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""))
		b.record("t", msg("a", ""))
		nobody, silent := deadletter.Act{Why: "because"}, deadletter.Act{Actor: "ann"}
		_, replay := b.letters.ReplayMatching(b.Context(), nobody, everything, deadletter.Plan{})
		_, discard := b.letters.DiscardMatching(b.Context(), nobody, everything)
		_, sent := b.log.ReplayMatching(b.Context(), nobody, everything, deadletter.Plan{})
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
		_, rate := b.letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{Rate: -1})
		if rate == nil || !strings.Contains(rate.Error(), "Plan.Rate is -1: negative") {
			b.Fatalf(`got %v, want an error with "Plan.Rate is -1: negative"`, rate)
		}
		_, rate = b.log.DryRun(b.Context(), everything, deadletter.Plan{Rate: -1})
		if rate == nil || !strings.Contains(rate.Error(), "Plan.Rate") {
			b.Fatalf(`got %v, want an error with "Plan.Rate"`, rate)
		}
		for _, plan := range []deadletter.Plan{{Canary: 1}, {Window: 1}, {StopOnFailure: true}} {
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
		if got := b.dead(); got != 1 {
			b.Fatalf("dead is %d, want 1", got)
		}
		if got := b.pending(); got != 0 {
			b.Fatalf("pending is %d, want 0", got)
		}
		if got := b.audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
	})
}
