package main

import (
	"fmt"
	"strings"

	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/status"
)

func statusOf(s status.Status) statusJSON {
	out := statusJSON{
		At: s.At, Tables: schema.Version(), FreeSlots: s.FreeSlots, Replays: s.Replays,
		Outbox: backlogJSON{
			Pending: atMostJSON(s.Outbox.Pending), Deferred: atMostJSON(s.Outbox.Deferred), Failing: atMostJSON(s.Outbox.Failing),
			OldestSeconds: s.Outbox.Oldest.Seconds(), FailingSeconds: s.Outbox.FailingFor.Seconds(),
			BlockedKeys: atMostJSON(s.Outbox.BlockedKeys), Pauses: []pauseJSON{},
		},
		Forwarders: []instanceJSON{}, Failures: []failureJSON{},
		Dead: atMostJSON(s.Dead), Waiting: atMostJSON(s.Waiting), Held: atMostJSON(s.Held), Quarantine: atMostJSON(s.Quarantine),
	}
	for _, p := range s.Outbox.Pauses {
		out.Outbox.Pauses = append(out.Outbox.Pauses, pauseJSON(p))
	}
	for _, f := range s.Forwarders {
		out.Forwarders = append(out.Forwarders, instanceJSON{f.Owner, f.Destination, f.Slots, f.LeaseUntil})
	}
	for _, f := range s.Failures {
		out.Failures = append(out.Failures, failureJSON{f.Fingerprint, f.Count, f.Consumer, f.Reason, f.ErrorType, f.LastFailedAt})
	}
	return out
}

// atMost returns a count and its noun as text. The text shows whether the count is an
// estimate, and whether it stopped at its limit.
func atMost(c status.Count, noun, nouns string) string {
	switch {
	case c.About > 0:
		return fmt.Sprintf("about %d %s", c.About, nouns)
	case c.More:
		return fmt.Sprintf("more than %d %s", c.N, nouns)
	}
	return counted(c.N, noun, nouns)
}

// statusText returns the state as a text that fits on one screen.
func statusText(width int, s status.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "outbox      %s", atMost(s.Outbox.Pending, "message waits", "messages wait"))
	if s.Outbox.Oldest > 0 {
		fmt.Fprintf(&b, ", one has been due for %s", age(s.Outbox.Oldest))
	}
	fmt.Fprintf(&b, "\n            %s, %s, %s\n", atMost(s.Outbox.Deferred, "is due later", "are due later"),
		atMost(s.Outbox.Failing, "fails", "fail"), atMost(s.Outbox.BlockedKeys, "ordering key is blocked", "ordering keys are blocked"))
	for _, p := range s.Outbox.Pauses {
		fmt.Fprintf(&b, "            paused for %s: %s, by %s: %s\n",
			age(s.At.Sub(p.Since)), scopeText(p.Topic, p.Tenant), plain(p.Actor), plain(p.Why))
	}
	fmt.Fprintf(&b, "forwarders  %s", counted(len(s.Forwarders), "instance runs", "instances run"))
	if s.FreeSlots > 0 && (len(s.Forwarders) > 0 || s.Outbox.Pending.N > 0) { // a consumer's database has no forwarder
		fmt.Fprintf(&b, "; nobody sends the messages of %s", counted(s.FreeSlots, "slot", "slots"))
	}
	b.WriteString("\n")
	for _, f := range s.Forwarders {
		destination := f.Destination
		if destination == "" {
			destination = "an unknown destination"
		}
		fmt.Fprintf(&b, "            %s has %s and sends to %s\n", plain(f.Owner), counted(f.Slots, "slot", "slots"), plain(destination))
	}
	fmt.Fprintf(&b, "dead        %s\n", atMost(s.Dead, "dead letter", "dead letters"))
	fmt.Fprintf(&b, "parked      %s, %s\n", atMost(s.Waiting, "message is tried again later", "messages are tried again later"),
		atMost(s.Held, "waits for its ordering key", "wait for their ordering key"))
	fmt.Fprintf(&b, "quarantine  %s\n", atMost(s.Quarantine, "message", "messages"))
	if s.Replays > 0 {
		fmt.Fprintf(&b, "replays     %s\n", counted(s.Replays, "replay runs", "replays run"))
	}
	if len(s.Failures) > 0 {
		var rows [][]string
		for _, f := range s.Failures {
			rows = append(rows, []string{f.Fingerprint, fmt.Sprint(f.Count), f.Consumer, at(f.LastFailedAt), f.Reason, f.ErrorType})
		}
		b.WriteString("\nCauses among the latest entries of the quarantine:\n" +
			table(width, []string{"GROUP", "COUNT", "CONSUMER", "LAST (UTC)", "REASON", "ERROR TYPE"}, rows))
	}
	return b.String()
}
