package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// payments is a running consumer that refuses negative amounts, and refuses everything
// while the gateway is down.
type payments struct {
	transport *embedded.Transport
	down      atomic.Bool
	handled   atomic.Int64
}

func startPayments(s *shell, db kit.Database) *payments {
	s.Helper()
	tables := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	p := &payments{}
	var err error
	must := func() {
		s.Helper()
		kit.OK(s, err)
	}
	p.transport, err = embedded.New(db.DB, embedded.Config{Schema: tables, Logger: watermill.NopLogger{}})
	must()
	consumer, err := once.NewConsumer(db.DB, once.ConsumerConfig{Schema: tables, Logger: watermill.NopLogger{}})
	must()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must()
	consumer.AddHandler(router, "payments", "orders.placed", p.transport.Subscriber(),
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			switch {
			case p.down.Load():
				return nil, retry.Permanent(errors.New("the gateway is down"))
			case strings.Contains(string(msg.Payload), "-"):
				return nil, retry.Permanent(errors.New("negative amount"))
			}
			p.handled.Add(1)
			return nil, nil
		})
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	ended := kit.Go(func() error { return router.Run(ctx) })
	<-router.Running()
	s.Cleanup(func() {
		cancel()
		kit.Check(s, errors.Join(router.Close(), <-ended))
	})
	return p
}

func (p *payments) publish(s *shell, payload string, ids ...string) {
	s.Helper()
	for _, id := range ids {
		kit.OK(s, p.transport.Publish("orders.placed", message.NewMessage(id, []byte(payload))))
	}
}

// quarantined waits until n messages are in quarantine.
func (s *shell) quarantined(n int) {
	s.Helper()
	kit.Eventually(s, time.Minute, fmt.Sprint(n, " messages are in quarantine"), func() bool {
		return object[countJSON](s, exitDone, "quarantine", "count").Count == n
	})
}

// An operator finds the causes, repairs them, and empties the quarantine.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "quarantine", "groups"), "No message in quarantine matches.")
		consumer := startPayments(s, db)
		consumer.publish(s, "-5", "m1")
		s.quarantined(1)
		consumer.down.Store(true)
		consumer.publish(s, "7", "m2", "m3", "m4")
		s.quarantined(4)
		consumer.down.Store(false)

		groups := object[groupsJSON](s, exitDone, "quarantine", "groups").Groups
		down := groups[0]
		if len(groups) != 2 {
			t.Fatalf("groups %+v", groups)
		}
		if down.Count != 3 {
			down = groups[1]
		}
		if down.Count != 3 || down.Reason != "permanent" || down.Consumers[0] != "payments" {
			t.Fatalf("groups %+v", groups)
		}
		s.says(s.once(exitDone, "quarantine", "groups"), "the gateway is down", "negative amount", down.Group)

		page := object[entriesJSON](s, exitDone, "quarantine", "list", "--limit", "3")
		if len(page.Entries) != 3 || page.Next != page.Entries[2].ID || page.Entries[0].MessageID != "m1" || page.Entries[0].Metadata != nil {
			t.Fatalf("page %+v", page)
		}
		first := fmt.Sprint(page.Entries[0].ID)
		s.says(s.once(exitDone, "quarantine", "list", "--topic", "orders.placed"), "m1", "m4", "negative amount")
		shown := object[entryJSON](s, exitDone, "quarantine", "show", first)
		if shown.Payload == nil || *shown.Payload != "-5" {
			t.Errorf("entry %+v", shown)
		}
		s.says(s.once(exitDone, "quarantine", "show", first), "message id:     m1", "payload (2 bytes):\n-5\n")
		if shown.Stack != "" {
			t.Errorf("the stack is %q", shown.Stack)
		}

		// The entry of a panic has a stack.
		const stack = "main.charge(...)\n\tcharge.go:7"
		kit.Exec(t, db, `UPDATE once_parked SET stack = $1`, stack)
		if got := object[entryJSON](s, exitDone, "quarantine", "show", first).Stack; got != stack {
			t.Errorf("the stack is %q", got)
		}
		s.says(s.once(exitDone, "quarantine", "show", first), "stack:\nmain.charge(...)\n    charge.go:7\n")

		// A dry run changes nothing.
		dry := object[changeJSON](s, exitDone, "quarantine", "replay", "--group", down.Group)
		if !dry.DryRun || dry.Matched != 3 || dry.Changed != 0 {
			t.Errorf("dry run %+v", dry)
		}
		s.says(s.once(exitDone, "quarantine", "discard", "--all"), "This would discard 4 messages. Nothing was changed: add --yes")
		s.quarantined(4)

		replayed := object[changeJSON](s, exitDone, "quarantine", "replay", "--group", down.Group, "--canary", "1", "--stop-on-failure", "--yes")
		if replayed.DryRun || replayed.Changed != 3 || replayed.Replay.State != "finished" || replayed.Replay.Resolved != 3 {
			t.Errorf("replay %+v", replayed)
		}
		if n := consumer.handled.Load(); n != 3 {
			t.Errorf("%d messages were handled", n)
		}

		// The message that cannot succeed fails again, and stops the replay.
		s.says(s.once(exitFailed, "quarantine", "replay", "--all", "--stop-on-failure", "--yes"),
			"the replay was stopped", "once replays resume 2")
		s.quarantined(1)
		if list := object[replaysJSON](s, exitDone, "replays", "list"); len(list.Replays) != 2 || list.Replays[0].State != "stopped" {
			t.Errorf("replays %+v", list)
		}
		s.says(s.once(exitDone, "replays", "list"), "stopped", "finished", "ann")
		s.says(s.once(exitFound, "replays", "watch", "2"), "Replay 2 stopped", "1 failed again", "once replays resume 2")
		s.says(s.once(exitFailed, "quarantine", "replay", "--group", "unknown", "--yes"), `failure group "unknown": not found`)
		s.says(s.once(exitDone, "quarantine", "replay", "--topic", "unknown", "--yes"), "No message matches.")
		if list := object[replaysJSON](s, exitDone, "replays", "list"); len(list.Replays) != 2 {
			t.Errorf("a replay that matched nothing is kept: %+v", list)
		}
		s.says(s.once(exitFailed, "quarantine", "replay", first, "99", "--rate", "100"),
			"1 of 1 message replayed", "1 of 2 messages: not found (once quarantine list shows the IDs)")
		s.quarantined(1)

		s.stdin = "5"
		edited := object[editJSON](s, exitDone, "quarantine", "edit", first, "--payload", "-", "--set", "by=ann", "--why", "the sign was wrong")
		if edited.EditedFrom != page.Entries[0].ID {
			t.Errorf("edit %+v", edited)
		}
		kit.Eventually(t, time.Minute, "the edited message is handled", func() bool { return consumer.handled.Load() == 4 })
		s.quarantined(0)
		s.says(s.once(exitFailed, "quarantine", "edit", first, "--payload", "-", "--why", "again"), "not found in quarantine")
		var acts int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_audit WHERE actor = 'ann'`).Scan(&acts); err != nil || acts < 5 {
			t.Errorf("%d acts in the audit, %v", acts, err)
		}
	})
}

// Entries are exported, imported into another database, and discarded there.
func TestQuarantineExportImportDiscard(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		consumer := startPayments(s, db)
		consumer.publish(s, "-1", "m1", "m2", "m3")
		s.quarantined(3)
		file := filepath.Join(t.TempDir(), "entries.jsonl")
		if out := object[exportJSON](s, exitDone, "quarantine", "export", "--file", file); out.Exported != 3 || out.File != file {
			t.Errorf("export %+v", out)
		}
		s.says(s.once(exitUsage, "quarantine", "export", "--file", file), "file exists")
		lines := s.once(exitDone, "quarantine", "export", "--message-id", "m2")
		if strings.Count(lines, "\n") != 1 || !strings.Contains(lines, `"message_id":"m2"`) {
			t.Errorf("export\n%s", lines)
		}

		other := newShell(t, kit.SQLite(t))
		if in := object[importJSON](other, exitDone, "quarantine", "import", file); in.Imported != 3 || in.Known != 0 {
			t.Errorf("import %+v", in)
		}
		if in := object[importJSON](other, exitDone, "quarantine", "import", file); in.Imported != 0 || in.Known != 3 {
			t.Errorf("second import %+v", in)
		}
		const absent = `once: quarantine: replay: the consumer is not running: consumer "payments" on topic "orders.placed" ` +
			"was never seen with retry's Subscriber, which brings replayed messages; start it first, or set operate.Config.ReplayToAbsent " +
			"(start the consumer, or add --to-absent)\n"
		if got := other.once(exitFailed, "quarantine", "replay", "1"); got != absent {
			t.Errorf("a replay to nobody says\n%s\nwant\n%s", got, absent)
		}
		other.says(other.once(exitDone, "quarantine", "discard", "1", "--why", "a test order"), "Discarded 1 message.")
		gone := object[changeJSON](other, exitDone, "quarantine", "discard", "--consumer", "payments", "--why", "test orders", "--yes")
		if gone.Matched != 2 || gone.Changed != 2 || gone.DryRun {
			t.Errorf("discard %+v", gone)
		}
		other.quarantined(0)
		other.says(other.once(exitFailed, "quarantine", "discard", "1", "--why", "again"), "not found in quarantine")
	})
}

// Ctrl-C pauses a replay. The command then prints how to resume the replay.
func TestInterruptPausesAReplay(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, interruptReplay)
}

func interruptReplay(t *testing.T, db kit.Database) {
	t.Helper()
	s := newShell(t, db)
	consumer := startPayments(s, db)
	consumer.down.Store(true)
	consumer.publish(s, "1", "m1", "m2", "m3", "m4", "m5", "m6")
	s.quarantined(6)
	consumer.down.Store(false)

	s.interruptsReplay("replay 1 is paused; resume it with: once replays resume 1", "quarantine", "replay", "--all")
	if n := consumer.handled.Load(); n >= 6 {
		t.Errorf("%d messages were handled before the interrupt", n)
	}
	s.says(s.once(exitDone, "replays", "stop", "1"), "Replay 1 is paused")
	resumed := object[changeJSON](s, exitDone, "replays", "resume", "1")
	if resumed.Replay.State != "finished" || resumed.Replay.Resolved != 6 || consumer.handled.Load() != 6 {
		t.Errorf("resume %+v, %d handled", resumed.Replay, consumer.handled.Load())
	}
	s.says(s.once(exitFailed, "replays", "resume", "1"), "the replay has finished")
	s.says(s.once(exitFailed, "replays", "stop", "1"), "the replay has finished")
}
