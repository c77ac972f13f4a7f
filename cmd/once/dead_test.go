package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// unacceptable is an error that refuses a message forever.
type unacceptable struct{ error }

func (unacceptable) Unacceptable() bool { return true }

// broker is a publisher that never accepts messages of the topic "bad".
type broker struct{}

func (broker) Publish(topic string, _ ...*message.Message) error {
	if topic == "bad" {
		return unacceptable{errors.New("no broker accepts this")}
	}
	return nil
}
func (broker) Close() error { return nil }

// commit stores messages in the outbox.
func commit(s *shell, db kit.Database, topic string, ids ...string) {
	s.Helper()
	box, err := outbox.New(outbox.Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}})
	kit.OK(s, err)
	kit.OK(s, box.InTx(s.Context(), db.DB, func(_ *sql.Tx, events message.Publisher) error {
		for _, id := range ids {
			msg := message.NewMessage(id, []byte(`{"of":"`+id+`"}`))
			outbox.SetTenant(msg, "acme")
			if err := events.Publish(topic, msg); err != nil {
				return err
			}
		}
		return nil
	}))
}

// forwarded runs a forwarder until the outbox is empty.
func forwarded(s *shell, db kit.Database) {
	s.Helper()
	fwd, err := forwarder.New(db.DB, broker{}, forwarder.Config{
		Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}, KeepSent: time.Hour, Logger: watermill.NopLogger{},
	})
	kit.OK(s, err)
	ended := kit.Go(func() error { return fwd.Run(context.WithoutCancel(s.Context())) })
	kit.Eventually(s, time.Minute, "the outbox is empty", func() bool { return waiting(s) == 0 })
	kit.OK(s, errors.Join(fwd.Close(), <-ended))
}

func waiting(s *shell) int {
	s.Helper()
	return object[statusJSON](s, exitDone, "status").Outbox.Pending.N
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "dead", "list"), "No dead letter matches.")
		commit(s, db, "bad", "m1", "m2", "m3")
		forwarded(s, db)

		groups := object[groupsJSON](s, exitDone, "dead", "groups").Groups
		if len(groups) != 1 || groups[0].Count != 3 || groups[0].Topics[0] != "bad" || groups[0].Reason != "unacceptable" {
			t.Fatalf("groups %+v", groups)
		}
		s.says(s.once(exitDone, "dead", "groups"), "no broker accepts this", "bad")
		letters := object[lettersJSON](s, exitDone, "dead", "list", "--tenant", "acme", "--limit", "2")
		if len(letters.Letters) != 2 || letters.Next != letters.Letters[1].ID {
			t.Fatalf("letters %+v", letters)
		}
		first := fmt.Sprint(letters.Letters[0].ID)
		shown := object[letterJSON](s, exitDone, "dead", "show", first)
		id := letters.Letters[0].MessageID // letters are stored in the order in which the broker answers
		if shown.MessageID != id || shown.Payload == nil || *shown.Payload != `{"of":"`+id+`"}` || len(shown.Metadata) == 0 {
			t.Errorf("letter %+v", shown)
		}
		s.says(s.once(exitDone, "dead", "show", first), id, `{"of":"`+id+`"}`, "once_tenant_id = acme")
		if n := object[countJSON](s, exitDone, "dead", "count", "--group", groups[0].Group).Count; n != 3 {
			t.Errorf("count %d", n)
		}

		s.says(s.once(exitDone, "dead", "replay", "--topic", "bad"), "This would replay 3 messages. Nothing was changed: add --yes")
		if waiting(s) != 0 {
			t.Error("the dry run changed the outbox")
		}
		s.says(s.once(exitDone, "dead", "replay", first), "Replayed 1 message.")
		replayed := object[changeJSON](s, exitDone, "dead", "replay", "--group", groups[0].Group, "--yes")
		if replayed.Matched != 2 || replayed.Changed != 2 || replayed.DryRun {
			t.Errorf("replay %+v", replayed)
		}
		if waiting(s) != 3 {
			t.Errorf("%d messages in the outbox", waiting(s))
		}
		list := object[replaysJSON](s, exitDone, "replays", "list").Replays
		if len(list) != 1 || list[0].ID != replayed.ReplayID || list[0].Source != "dead" || list[0].Replayed != 2 || list[0].Failed != 0 {
			t.Errorf("replays %+v", list)
		}
		s.says(s.once(exitDone, "replays", "list"), "finished", "dead letters")
		s.says(s.once(exitDone, "replays", "watch", "1"), "Replay 1 finished: 2 of 2 messages replayed.")
		s.says(s.once(exitFailed, "replays", "resume", "1"), "the replay has finished")
		s.says(s.once(exitFailed, "dead", "replay", "--group", "unknown", "--yes"), `failure group "unknown": not found`)
		s.says(s.once(exitFailed, "dead", "replay", first), "not found")

		forwarded(s, db)
		file := filepath.Join(t.TempDir(), "dead.jsonl")
		if out := object[exportJSON](s, exitDone, "dead", "export", "--file", file); out.Exported != 3 {
			t.Errorf("export %+v", out)
		}
		gone := object[changeJSON](s, exitDone, "dead", "discard", "--all", "--why", "test orders", "--yes")
		if gone.Matched != 3 || gone.Changed != 3 {
			t.Errorf("discard %+v", gone)
		}
		s.says(s.once(exitFailed, "dead", "release", "order-1"), "no dead letter blocks")
	})
}

func TestSentLog(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "sent", "list"), "unless the forwarder keeps sent messages")
		commit(s, db, "good", "m1", "m2")
		forwarded(s, db)
		sent := object[sentListJSON](s, exitDone, "sent", "list", "--sent-after", "1h")
		if len(sent.Messages) != 2 || sent.Messages[0].SentAt.IsZero() {
			t.Fatalf("sent %+v", sent)
		}
		id := fmt.Sprint(sent.Messages[0].ID)
		shown := object[sentJSON](s, exitDone, "sent", "show", id)
		if shown.Payload == nil || *shown.Payload != `{"of":"`+sent.Messages[0].MessageID+`"}` {
			t.Errorf("message %+v", shown)
		}
		s.says(s.once(exitDone, "sent", "replay", "--all"), "This would replay 2 messages.", "good")
		s.once(exitDone, "sent", "replay", id)
		if got := object[changeJSON](s, exitDone, "sent", "replay", "--topic", "good", "--yes"); got.Changed != 2 || waiting(s) != 3 {
			t.Errorf("replay %+v, %d in the outbox", got, waiting(s))
		}

		// A message that consumers may have forgotten needs --force. The output lists it
		// as skipped.
		forwarded(s, db)
		late := object[changeJSON](s, exitFound, "sent", "replay", "--topic", "good", "--inbox-retention", "1ms", "--yes")
		if late.Changed != 0 || len(late.Skipped) != 5 {
			t.Errorf("replay %+v", late)
		}
	})
}

// A dry run may have any number of groups. It shows the largest ones, and counts the
// others.
func TestDryRunShowsTheLargestGroups(t *testing.T) {
	t.Parallel()
	var groups []groupJSON
	for n := range 500 {
		groups = append(groups, groupJSON{Group: fmt.Sprintf("group-%03d.", n), Count: n + 1, Topics: []string{"t"}})
	}
	text := largestGroups(80, groups)
	for n, want := range map[int]bool{499: true, 480: true, 479: false, 0: false} {
		if got := strings.Contains(text, groups[n].Group); got != want {
			t.Errorf("%s is shown: %t, want %t", groups[n].Group, got, want)
		}
	}
	if want := "and 480 smaller groups with 115440 messages"; !strings.Contains(text, want) {
		t.Errorf("%q is missing:\n%s", want, text)
	}
	if strings.Index(text, groups[499].Group) > strings.Index(text, groups[498].Group) {
		t.Errorf("the largest group is not the first:\n%s", text)
	}
}

// A replay of dead letters or of sent messages that was stopped by another process
// continues where it stopped, and puts no message into the outbox twice.
func TestStoppedReplayOfTheOutboxIsResumed(t *testing.T) {
	t.Parallel()
	// At one message a second, the replay runs until it is stopped, also on a slow machine.
	ids := make([]string, 20)
	for n := range ids {
		ids[n] = fmt.Sprint("m", n)
	}
	for source, topic := range map[string]string{"dead": "bad", "sent": "good"} {
		t.Run(source, func(t *testing.T) {
			if source != "sent" {
				kit.Long(t) // it waits for 20 messages, one a second
			}
			t.Parallel()
			eachDatabase(t, func(t *testing.T, db kit.Database) {
				s := newShell(t, db)
				commit(s, db, topic, ids...)
				forwarded(s, db)
				ended := make(chan result, 1)
				go func() { ended <- s.run(t.Context(), source, "replay", "--topic", topic, "--rate", "1", "--yes") }()
				kit.Eventually(t, time.Minute, "the replay has begun", func() bool {
					list := object[replaysJSON](s, exitDone, "replays", "list").Replays
					return len(list) == 1 && list[0].Replayed > 0
				})
				s.says(s.once(exitFailed, "replays", "resume", "1"), "a replay is running: 1")
				s.says(s.once(exitDone, "replays", "stop", "1", "--why", "lunch"), "Replay 1 is stopped: ")
				got := <-ended
				if got.code != exitFailed || !strings.Contains(got.stderr, "by ann: lunch; resume it with: once replays resume 1") {
					t.Fatalf("exit code %d\n%s%s", got.code, got.stdout, got.stderr)
				}
				before := waiting(s)
				if before == 0 || before == len(ids) {
					t.Fatalf("%d messages were replayed before the stop", before)
				}
				s.says(s.once(exitFound, "replays", "watch", "1"), "Replay 1 stopped", "once replays resume 1")

				resumed := object[changeJSON](s, exitDone, "replays", "resume", "1", "--why", "after lunch")
				if resumed.Changed != len(ids) || resumed.Matched != len(ids) || resumed.ReplayID != 1 {
					t.Errorf("resume %+v", resumed)
				}
				var n, distinct int
				err := db.QueryRowContext(t.Context(), `SELECT COUNT(*), COUNT(DISTINCT message_id) FROM once_outbox`).Scan(&n, &distinct)
				if err != nil || n != len(ids) || distinct != len(ids) {
					t.Errorf("%d rows of %d messages in the outbox, %v", n, distinct, err)
				}
				s.says(s.once(exitDone, "audit", "--action", "resume"), "ann", "after lunch")
				s.says(s.once(exitFailed, "replays", "resume", "1"), "the replay has finished")
			})
		})
	}
}

// interruptsReplay runs a replay in another process, and interrupts it with a signal, as
// Ctrl-C does. It fails the test unless the replay and the audit log say who ran the
// replay, why, and which signal paused it.
func (s *shell) interruptsReplay(message string, args ...string) {
	s.Helper()
	var output kit.Buffer
	cmd := exec.CommandContext(s.Context(), os.Args[0], append(args, "--rate", "1", "--yes", "--why", "mended")...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &output, &output, append(os.Environ(), asCommand+"=1")
	for name, value := range s.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	kit.OK(s, cmd.Start())
	kit.Eventually(s, time.Minute, "the replay has begun", func() bool {
		list := object[replaysJSON](s, exitDone, "replays", "list").Replays
		return len(list) == 1 && list[0].Replayed > 0
	})
	kit.OK(s, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(output.String(), message) {
		s.Fatalf("exit code %d, without %q:\n%s", code, message, &output)
	}

	const reason = "interrupted: interrupt signal received"
	r := object[replaysJSON](s, exitDone, "replays", "list").Replays[0]
	if r.State != "paused" || r.StopReason != reason || r.Actor != "ann" || r.Why != "mended" {
		s.Errorf("replay %+v", r)
	}
	records := object[auditJSON](s, exitDone, "audit", "--action", "pause").Records
	if len(records) != 1 || records[0].Actor != "ann" || records[0].Subject != "replay:1" || records[0].ReplayID != 1 ||
		records[0].Consumer != r.Consumer || records[0].Why != reason+"; reason of the replay: mended" {
		s.Errorf("audit %+v", records)
	}
}

func TestInterruptPausesAReplayOfTheOutbox(t *testing.T) {
	t.Parallel()
	for source, topic := range map[string]string{"dead": "bad", "sent": "good"} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			eachDatabase(t, func(t *testing.T, db kit.Database) {
				s := newShell(t, db)
				commit(s, db, topic, "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9")
				forwarded(s, db)
				s.interruptsReplay("once replays resume 1", source, "replay", "--topic", topic)
			})
		})
	}
}
