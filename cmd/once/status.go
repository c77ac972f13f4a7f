package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate/status"
	"github.com/watermill-once/once/schema"
)

// atMostJSON is a count that stops at 10,000.
type atMostJSON struct {
	N     int   `json:"count"`
	More  bool  `json:"more,omitempty"`  // whether there are more than N rows
	About int64 `json:"about,omitempty"` // estimate of the number of all rows
}

type backlogJSON struct {
	Pending        atMostJSON `json:"pending"`
	Deferred       atMostJSON `json:"deferred"`       // number of pending messages that are due later
	Failing        atMostJSON `json:"failing"`        // number of pending messages that were refused, or whose topic does not confirm
	OldestSeconds  float64    `json:"oldest_seconds"` // seconds for which the oldest due message has been due
	FailingSeconds float64    `json:"failing_seconds"`
	BlockedKeys    atMostJSON `json:"blocked_keys"`

	OldestFreeSeconds float64       `json:"oldest_free_seconds"` // like OldestSeconds, without messages that wait for a dead letter
	BlockedByDead     atMostJSON    `json:"blocked_by_dead"`
	DeadKeys          []deadKeyJSON `json:"dead_keys"` // the first keys that dead letters block

	Pauses []pauseJSON `json:"pauses"` // the counts include paused messages
}

type deadKeyJSON struct {
	OrderingKey string `json:"ordering_key"`
	Letter      int64  `json:"letter"`
}

type instanceJSON struct {
	Owner       string    `json:"owner"`
	Destination string    `json:"destination,omitempty"`
	Slots       int       `json:"slots"`
	LeaseUntil  time.Time `json:"lease_until"`
}

type failureJSON struct {
	Group        string    `json:"group"`
	Count        int       `json:"count"`
	Consumer     string    `json:"consumer"`
	Reason       string    `json:"reason"`
	ErrorType    string    `json:"error_type,omitempty"`
	LastFailedAt time.Time `json:"last_failed_at,omitzero"`
}

type statusJSON struct {
	At         time.Time            `json:"at"`
	Tables     int                  `json:"tables"` // version of the tables
	Outbox     backlogJSON          `json:"outbox"`
	Forwarders []instanceJSON       `json:"forwarders"`
	FreeSlots  int                  `json:"free_slots"`
	Dead       atMostJSON           `json:"dead"`
	Waiting    atMostJSON           `json:"waiting"`
	Held       atMostJSON           `json:"held"`
	Paused     []pausedConsumerJSON `json:"paused_consumers"` // the counts include their messages
	Quarantine atMostJSON           `json:"quarantine"`
	Replays    int                  `json:"replays"`  // number of running replays
	Failures   []failureJSON        `json:"failures"` // causes among the latest 1,000 entries of the quarantine
}

func (a *app) statusCommand() *cobra.Command {
	watch, every := false, 2*time.Second
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show outbox, forwarders, dead letters and quarantine on one screen",
		Long: `Show outbox, forwarders, dead letters and quarantine on one screen. It counts up to
10,000 rows; above that it shows the estimate of the database. So it is quick however
large the tables are.

With --watch it shows the state again and again, until Ctrl-C ends it. Without a
terminal it then writes one block after the other, with --json one object a line.`,
		Args: noArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("every") && !watch {
			return usagef("--every needs --watch")
		}
		return a.withTables(func(ctx context.Context, db database, _ []string) error {
			reader, err := status.New(db.DB, db.tables)
			if err != nil {
				return err
			}
			if watch {
				return a.watch(ctx, reader, every)
			}
			s, err := reader.Read(ctx)
			if err != nil {
				return err
			}
			return a.print(statusOf(s), statusText(a.width, s))
		})(cmd, args)
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show the state again and again, until Ctrl-C")
	cmd.Flags().Var(duration(&every), "every", "pause of --watch")
	return cmd
}

func (a *app) watch(ctx context.Context, reader *status.Reader, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		s, err := reader.Read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			fmt.Fprintf(a.stderr, "once: %s\n", a.hide(err.Error()))
		default:
			if err := a.printBlock(s); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (a *app) printBlock(s status.Status) error {
	if a.settings.json {
		return json.NewEncoder(a.stdout).Encode(statusOf(s))
	}
	text := at(s.At) + " UTC\n" + statusText(a.width, s)
	if a.width > 0 {
		text = "\x1b[H\x1b[2J" + text
	} else {
		text += "\n"
	}
	_, err := fmt.Fprint(a.stdout, text)
	return err
}

func statusOf(s status.Status) statusJSON {
	out := statusJSON{
		At: s.At, Tables: schema.Version(), FreeSlots: s.FreeSlots, Replays: s.Replays,
		Outbox: backlogJSON{
			Pending: atMostJSON(s.Outbox.Pending), Deferred: atMostJSON(s.Outbox.Deferred), Failing: atMostJSON(s.Outbox.Failing),
			OldestSeconds: s.Outbox.Oldest.Seconds(), FailingSeconds: s.Outbox.FailingFor.Seconds(),
			BlockedKeys: atMostJSON(s.Outbox.BlockedKeys), BlockedByDead: atMostJSON(s.Outbox.BlockedByDead),
			OldestFreeSeconds: s.Outbox.OldestFree.Seconds(), DeadKeys: []deadKeyJSON{}, Pauses: []pauseJSON{},
		},
		Forwarders: []instanceJSON{}, Failures: []failureJSON{},
		Paused: []pausedConsumerJSON{},
		Dead:   atMostJSON(s.Dead), Waiting: atMostJSON(s.Waiting), Held: atMostJSON(s.Held), Quarantine: atMostJSON(s.Quarantine),
	}
	for _, k := range s.Outbox.DeadKeys {
		out.Outbox.DeadKeys = append(out.Outbox.DeadKeys, deadKeyJSON{k.OrderingKey, k.Letter})
	}
	for _, p := range s.Outbox.Pauses {
		out.Outbox.Pauses = append(out.Outbox.Pauses, pauseJSON(p))
	}
	for _, p := range s.PausedConsumers {
		out.Paused = append(out.Paused, pausedConsumerJSON(p))
	}
	for _, f := range s.Forwarders {
		out.Forwarders = append(out.Forwarders, instanceJSON{f.Owner, f.Destination, f.Slots, f.LeaseUntil})
	}
	for _, f := range s.Failures {
		out.Failures = append(out.Failures, failureJSON{f.Fingerprint, f.Count, f.Consumer, f.Reason, f.ErrorType, f.LastFailedAt})
	}
	return out
}

func atMost(c status.Count, noun, nouns string) string {
	switch {
	case c.About > 0:
		return fmt.Sprintf("about %d %s", c.About, nouns)
	case c.More:
		return fmt.Sprintf("more than %d %s", c.N, nouns)
	}
	return counted(c.N, noun, nouns)
}

func statusText(width int, s status.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "outbox      %s", atMost(s.Outbox.Pending, "message waits", "messages wait"))
	if s.Outbox.Oldest > 0 {
		fmt.Fprintf(&b, ", one has been due for %s", age(s.Outbox.Oldest))
	}
	fmt.Fprintf(&b, "\n            %s, %s, %s\n", atMost(s.Outbox.Deferred, "is due later", "are due later"),
		atMost(s.Outbox.Failing, "fails", "fail"), atMost(s.Outbox.BlockedKeys, "ordering key is blocked", "ordering keys are blocked"))
	for _, k := range s.Outbox.DeadKeys {
		fmt.Fprintf(&b, "            %s: %s\n", plain(k.String()), plain(k.Remedy()))
	}
	if n := len(s.Outbox.DeadKeys); s.Outbox.BlockedByDead.N > n {
		fmt.Fprintf(&b, "            dead letters block %s in all: once outbox blocked\n",
			atMost(s.Outbox.BlockedByDead, "ordering key", "ordering keys"))
	}
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
	for _, p := range s.PausedConsumers {
		fmt.Fprintf(&b, "            paused for %s: consumer %q of topic %q, by %s: %s\n",
			age(s.At.Sub(p.Since)), p.Consumer, p.Topic, plain(p.Actor), plain(p.Why))
	}
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
