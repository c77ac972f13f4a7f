package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/status"
)

// atMostJSON is a count that stops at 10,000.
type atMostJSON struct {
	N     int   `json:"count"`
	More  bool  `json:"more,omitempty"`  // whether there are more than N rows
	About int64 `json:"about,omitempty"` // estimate of the number of all rows
}

// backlogJSON is the state of the outbox.
type backlogJSON struct {
	Pending        atMostJSON `json:"pending"`
	Deferred       atMostJSON `json:"deferred"`       // number of pending messages that are due later
	Failing        atMostJSON `json:"failing"`        // number of pending messages that were refused, or whose topic does not confirm
	OldestSeconds  float64    `json:"oldest_seconds"` // seconds for which the oldest due message has been due
	FailingSeconds float64    `json:"failing_seconds"`
	BlockedKeys    atMostJSON `json:"blocked_keys"`

	Pauses []pauseJSON `json:"pauses"` // the counts include paused messages
}

// instanceJSON is a running forwarder.
type instanceJSON struct {
	Owner       string    `json:"owner"`
	Destination string    `json:"destination,omitempty"`
	Slots       int       `json:"slots"`
	LeaseUntil  time.Time `json:"lease_until"`
}

// failureJSON describes entries with the same cause, among the latest entries of the
// quarantine.
type failureJSON struct {
	Group        string    `json:"group"`
	Count        int       `json:"count"`
	Consumer     string    `json:"consumer"`
	Reason       string    `json:"reason"`
	ErrorType    string    `json:"error_type,omitempty"`
	LastFailedAt time.Time `json:"last_failed_at,omitzero"`
}

// statusJSON is the JSON output of "once status".
type statusJSON struct {
	At         time.Time      `json:"at"`
	Tables     int            `json:"tables"` // version of the tables
	Outbox     backlogJSON    `json:"outbox"`
	Forwarders []instanceJSON `json:"forwarders"`
	FreeSlots  int            `json:"free_slots"`
	Dead       atMostJSON     `json:"dead"`
	Waiting    atMostJSON     `json:"waiting"`
	Held       atMostJSON     `json:"held"`
	Quarantine atMostJSON     `json:"quarantine"`
	Replays    int            `json:"replays"`  // number of running replays
	Failures   []failureJSON  `json:"failures"` // causes among the latest 1,000 entries of the quarantine
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
			reader, err := status.New(db.DB, status.Config{Schema: db.tables})
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

// watch shows the state again and again until ctx ends. If it cannot read the state, it
// prints the error and tries again.
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

// printBlock prints one state for --watch.
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
