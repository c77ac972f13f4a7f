package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
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
func commit(s *shell, db testkit.Database, topic string, ids ...string) {
	s.Helper()
	box, err := outbox.New(outbox.Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}})
	if err != nil {
		s.Fatal(err)
	}
	err = box.InTx(s.Context(), db.DB, func(_ *sql.Tx, events message.Publisher) error {
		for _, id := range ids {
			msg := message.NewMessage(id, []byte(`{"of":"`+id+`"}`))
			outbox.SetTenant(msg, "acme")
			if err := events.Publish(topic, msg); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

// forwarded runs a forwarder until the outbox is empty.
func forwarded(s *shell, db testkit.Database) {
	s.Helper()
	fwd, err := forwarder.New(db.DB, broker{}, forwarder.Config{
		Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}, KeepSent: time.Hour, Logger: watermill.NopLogger{},
	})
	if err != nil {
		s.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(context.WithoutCancel(s.Context())) }()
	testkit.Eventually(s, time.Minute, "the outbox is empty", func() bool { return waiting(s) == 0 })
	if err := errors.Join(fwd.Close(), <-ended); err != nil {
		s.Fatal(err)
	}
}

func waiting(s *shell) int {
	s.Helper()
	return object[statusJSON](s, exitDone, "status").Outbox.Pending.N
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
