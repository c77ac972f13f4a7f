package deadletter_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/schema"
)

func TestConfigIsValidated(t *testing.T) {
	bad := deadletter.Config{Schema: schema.Config{Prefix: "-"}, InboxRetention: -1}
	_, err := deadletter.New(nil, bad)
	for _, part := range []string{"deadletter: db is nil", "deadletter: schema: Prefix", "deadletter: InboxRetention is -1ns: negative"} {
		require.ErrorContains(t, err, part)
	}
	_, err = deadletter.NewSentLog(nil, bad)
	require.ErrorContains(t, err, "InboxRetention")
}

// calls returns each call on the letters that takes a Filter and changes rows or
// could.
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
				require.ErrorContains(b, err, text, name)
				require.ErrorContains(b, err, "deadletter: "+name+": ", name)
			}
			if text == "Filter has no condition" || text == "set All" {
				continue // calls that change nothing accept these
			}
			_, err := b.letters.List(b.Context(), f)
			require.ErrorContains(b, err, text)
			_, err = b.letters.Count(b.Context(), f)
			require.ErrorContains(b, err, text)
			_, err = b.letters.Export(b.Context(), f, io.Discard)
			require.ErrorContains(b, err, text)
			if f.AfterGroup == "" {
				_, err = b.letters.Groups(b.Context(), f)
				require.ErrorContains(b, err, text)
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
			require.ErrorContains(b, err, text)
			_, err = b.log.Count(b.Context(), f)
			require.ErrorContains(b, err, text)
			_, err = b.log.DryRun(b.Context(), f, deadletter.Plan{})
			require.ErrorContains(b, err, text)
			_, err = b.log.ReplayMatching(b.Context(), ann, f, deadletter.Plan{})
			require.ErrorContains(b, err, text)
			_, err = b.log.Export(b.Context(), f, io.Discard)
			require.ErrorContains(b, err, text)
		}
		_, err := b.log.ReplayMatching(b.Context(), ann, deadletter.Filter{}, deadletter.Plan{})
		require.ErrorContains(b, err, "deadletter: sent log: replay: the Filter has no condition")
		for name, err := range calls(b, ann, deadletter.Filter{IDs: []int64{}}, deadletter.Plan{}) {
			require.NoError(b, err, "a list without elements is a condition: %s", name)
		}
		require.Equal(b, 1, b.dead())
		require.Zero(b, b.pending())
		require.Empty(b, b.audits())
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
		for _, err := range []error{
			replay, discard, sent, b.letters.Replay(b.Context(), nobody, 1), b.letters.Discard(b.Context(), nobody, 1),
			b.letters.Release(b.Context(), nobody, "key"), b.log.Replay(b.Context(), nobody, 1),
		} {
			require.ErrorContains(b, err, "Actor is empty")
		}
		_, discard = b.letters.DiscardMatching(b.Context(), silent, everything)
		require.ErrorContains(b, discard, "Why is empty")
		require.ErrorContains(b, b.letters.Discard(b.Context(), silent, 1), "Why is empty")
		for _, err := range []error{
			b.letters.Replay(b.Context(), ann), b.letters.Discard(b.Context(), ann), b.log.Replay(b.Context(), ann),
		} {
			require.ErrorContains(b, err, "no IDs")
		}
		_, rate := b.letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{Rate: -1})
		require.ErrorContains(b, rate, "Plan.Rate is -1: negative")
		_, rate = b.log.DryRun(b.Context(), everything, deadletter.Plan{Rate: -1})
		require.ErrorContains(b, rate, "Plan.Rate")
		for _, plan := range []deadletter.Plan{{Canary: 1}, {Window: 1}, {StopOnFailure: true}} {
			_, err := b.letters.ReplayMatching(b.Context(), ann, everything, plan)
			require.ErrorContains(b, err, "Canary, Window or StopOnFailure is set")
			_, err = b.letters.DryRun(b.Context(), everything, plan)
			require.ErrorContains(b, err, "Canary, Window or StopOnFailure is set")
			_, err = b.log.ReplayMatching(b.Context(), ann, everything, plan)
			require.ErrorContains(b, err, "Canary, Window or StopOnFailure is set")
		}
		require.Equal(b, 1, b.dead())
		require.Zero(b, b.pending())
		require.Empty(b, b.audits())
	})
}
