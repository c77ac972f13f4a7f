package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// park stores messages of a consumer that are due in an hour.
func park(s *shell, db kit.Database, ids ...string) *store.Store {
	s.Helper()
	parked, err := store.NewStore(db.DB, schema.Config{Dialect: schema.Dialect(db.Dialect)})
	kit.OK(s, err)
	for _, id := range ids {
		kit.OK(s, parked.Park(s.Context(), &store.Delivery{Consumer: "payments", Topic: "orders.placed"}, message.NewMessage(id, []byte("7")),
			store.Failure{Err: errors.New("no answer"), Attempts: 3}, time.Hour))
	}
	return parked
}

// An operator finds messages that wait, and runs, cancels and discards them.
func TestParked(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "parked", "list"), "No parked message matches.")
		parked := park(s, db, "m1", "m2", "m3", "m4", "m5")
		if n := object[countJSON](s, exitDone, "parked", "count", "--consumer", "payments").Count; n != 5 {
			t.Errorf("%d messages", n)
		}
		list := object[parkedListJSON](s, exitDone, "parked", "list", "--limit", "2")
		if len(list.Messages) != 2 || list.Next != 2 || list.Messages[0].Metadata != nil || list.Messages[1].MessageID != "m2" {
			t.Fatalf("list %+v", list)
		}
		s.says(s.once(exitDone, "parked", "list", "--state", "waiting", "--limit", "2"), "m1", "no answer", "add --after 2")
		s.says(s.once(exitDone, "parked", "show", "1"), "message id:     m1", "attempts:       3", "payload (1 bytes):\n7\n")
		if one := object[parkedJSON](s, exitDone, "parked", "show", "1"); *one.Payload != "7" || one.State != "waiting" || one.Claimed {
			t.Errorf("show %+v", one)
		}
		s.says(s.once(exitFailed, "parked", "show", "99"), "message 99: not found")

		// A dry run changes nothing.
		s.says(s.once(exitDone, "parked", "cancel", "--all"), "This would cancel 5 messages. Nothing was changed: add --yes to do it.")
		if dry := object[parkedChangeJSON](s, exitDone, "parked", "run", "--topic", "orders.placed"); !dry.DryRun || dry.Changed != 5 {
			t.Errorf("dry run %+v", dry)
		}
		s.says(s.once(exitDone, "parked", "run", "1"), "Due now: 1 message.")
		claimed, err := parked.Claim(t.Context(), store.Select{
			Consumer: "payments", Topic: "orders.placed", Owner: "host/1/a", Limit: 5, Lease: time.Hour,
		})
		if err != nil || len(claimed) != 1 {
			t.Fatalf("%v, %d claimed", err, len(claimed))
		}
		s.says(s.once(exitDone, "parked", "list", "--message-id", "m1"), "its handler")
		s.says(s.once(exitFailed, "parked", "discard", "1", "--why", "void"), "message 1: a handler is handling the message or a copy of it")
		s.says(s.once(exitDone, "parked", "discard", "2", "--why", "void"), "Discarded 1 message.")
		s.says(s.once(exitDone, "parked", "cancel", "3", "--why", "void"), "Cancelled 1 message.")
		s.says(s.once(exitDone, "quarantine", "list", "--reason", "cancelled"), "m3", "cancelled by ann: void; last error: no answer")
		got := object[parkedChangeJSON](s, exitFound, "parked", "cancel", "--all", "--why", "void", "--yes")
		if fmt.Sprint(got) != "{false 2 [1] [] []}" {
			t.Errorf("cancel %+v", got)
		}
		s.says(s.once(exitFound, "parked", "run", "--all", "--yes"), "Due now: 0 messages.", "a consumer is handling them: 1.")
		s.says(s.once(exitFailed, "parked", "cancel", "2", "--why", "void"), "message 2: neither waiting nor held, but discarded")

		s.once(exitDone, "quarantine", "replay", "3", "--to-absent")
		s.says(s.once(exitDone, "quarantine", "list", "--replayed"), "m3", "waiting")
		if list := object[entriesJSON](s, exitDone, "quarantine", "list", "--replayed", "--topic", "else"); len(list.Entries) != 0 {
			t.Errorf("replayed %+v", list)
		}
	})
}

// "once consumers list" shows each consumer with the numbers of its messages. A
// consumer without an instance can be removed.
func TestConsumers(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "consumers", "list"), "No consumer is known.")
		startPayments(s, db)
		var c consumerJSON
		kit.Eventually(t, time.Minute, "the instance is registered", func() bool {
			list := object[consumersJSON](s, exitDone, "consumers", "list")
			if len(list.Consumers) == 1 {
				c = list.Consumers[0]
			}
			return c.Running && len(c.Instances) == 1
		})
		if c.Consumer != "payments" || c.Topic != "orders.placed" || !c.Embedded || !c.Registered || c.Program == "" {
			t.Errorf("consumer %+v", c)
		}
		s.says(s.once(exitDone, "consumers", "list", "--instances"), "payments", "INSTANCE", c.Instances[0].Owner, "runs")
		s.says(s.once(exitFailed, "consumers", "remove", "payments", "orders.placed", "--why", "renamed"), "the consumer is running", "stop it")
		s.says(s.once(exitFailed, "consumers", "remove", "payment", "orders.placed", "--why", "renamed"), "no such consumer")

		park(s, db, "m1")
		ago := `now() - interval '1 hour'`
		if db.Dialect == "sqlite" {
			ago = `unixepoch() * 1000 - 3600000`
		}
		kit.Exec(t, db, `INSERT INTO once_consumers (consumer, topic, seen_at) VALUES ('old', 'orders.placed', `+ago+`)`)
		if out := object[removedJSON](s, exitDone, "consumers", "remove", "old", "orders.placed", "--why", "renamed"); out.Consumer != "old" {
			t.Errorf("removed %+v", out)
		}
		c = object[consumersJSON](s, exitDone, "consumers", "list").Consumers[0]
		if c.Waiting != 1 || c.Failing != 1 || c.LagSeconds != 0 {
			t.Errorf("consumer %+v", c)
		}
	})
}

func TestConsumersPause(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitFailed, "consumers", "pause", "payments", "--why", "no provider"), `no such consumer: "payments"; known are none`)
		s.exec(db,
			`INSERT INTO once_consumers (consumer, topic) VALUES ('payments', 'orders'), ('payments', 'refunds')`,
			`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
				VALUES ('payments', 'orders', 'q1', '', 'x', 'quarantined', `+daysAgo(db, 0)+`)`)
		s.says(s.once(exitUsage, "consumers", "pause", "payments"), "--why")
		s.says(s.once(exitUsage, "consumers", "pause", "--why", "w"), "needs the name of a consumer")
		s.says(s.once(exitFailed, "consumers", "pause", "payment", "--why", "w"),
			`known are "payments" of topic "orders", "payments" of topic "refunds"`)

		s.says(s.once(exitDone, "consumers", "pause", "payments", "--topic", "orders", "--why", "no provider"),
			`Paused consumer "payments" of topic "orders".`)
		out := object[pausedTopicsJSON](s, exitDone, "consumers", "pause", "payments", "--why", "a mistake")
		if !slices.Equal(out.Topics, []string{"refunds"}) {
			t.Errorf("paused %+v, want refunds", out)
		}
		s.says(s.once(exitDone, "consumers", "pause", "payments", "--why", "again"), "was already paused")
		s.says(s.once(exitDone, "consumers", "list"), "0, paused",
			`Consumer "payments" of topic "orders" is paused since`, "no provider", "a mistake")
		s.says(s.once(exitDone, "status"), `consumer "payments" of topic "orders", by `, "no provider")
		if got := object[statusJSON](s, exitDone, "status").Paused; len(got) != 2 || got[0].Consumer != "payments" {
			t.Errorf("status %+v", got)
		}
		if c := object[consumersJSON](s, exitDone, "consumers", "list").Consumers[0]; c.Paused == nil || c.Paused.Why != "no provider" {
			t.Errorf("consumer %+v", c)
		}
		r := s.run(t.Context(), "quarantine", "replay", "1", "--to-absent")
		if !strings.Contains(r.stderr, `consumer "payments" of topic "orders" is paused`) {
			t.Errorf("the replay says %q, want that the consumer is paused", r.stderr)
		}

		s.says(s.once(exitDone, "consumers", "resume", "payments"), `Resumed consumer "payments" of topic "orders".`, `of topic "refunds"`)
		s.says(s.once(exitFailed, "consumers", "resume", "payments"), "not paused", "once consumers list shows")
		s.says(s.once(exitDone, "audit", "--action", "consumer.paused"), "payments", "topic:orders", "no provider")
	})
}
