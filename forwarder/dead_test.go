package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

var (
	ann     = forwarder.Act{Actor: "ann", Why: "the queue is back"}
	anybody = forwarder.Filter{All: true}
)

func deadLetters(t *testing.T, db *sql.DB, config schema.Config) *forwarder.DeadLetters {
	t.Helper()
	letters, err := forwarder.NewDeadLetters(db, config)
	require.NoError(t, err)
	return letters
}

// bury makes dead letters without a forwarder. They get the ids 1, 2, and so
// on; what is not said is the same for all.
func bury(t *testing.T, db *sql.DB, msgs ...*message.Message) {
	t.Helper()
	for i, m := range msgs {
		var key any
		if k := m.Metadata[outbox.OrderingKey]; k != "" {
			key = k
		}
		exec(t, db, `INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at,
			attempts, last_error, reason, unknown)
			VALUES ($1, $2, 't', $3, $4, $5, `+now(t, db)+`, 20, 'no queue', 'exhausted', 1 = 0)`,
			1000+i, m.UUID, key, []byte(m.Payload), encoded(t, m.Metadata))
	}
}

// age has the times of a table lie further back.
func age(t *testing.T, db *sql.DB, table, column string, by time.Duration, where string) {
	t.Helper()
	earlier := fmt.Sprintf(`%s - %d`, column, by.Milliseconds())
	if !isSQLite(t, db) {
		earlier = fmt.Sprintf(`%s - interval '1 millisecond' * %d`, column, by.Milliseconds())
	}
	exec(t, db, `UPDATE `+table+` SET `+column+` = `+earlier+` WHERE `+where)
}

func audits(t *testing.T, db *sql.DB) (lines []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT actor, action, subject, message_id, why FROM once_audit ORDER BY id`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var f [5]string
		require.NoError(t, rows.Scan(&f[0], &f[1], &f[2], &f[3], &f[4]))
		lines = append(lines, strings.Join(f[:], " | "))
	}
	require.NoError(t, rows.Err())
	return lines
}

func TestALetterIsShownWhole(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(delivery) error { return hopeless{errors.New("too large")} })
		cfg := quick(config)
		cfg.AfterDead = forwarder.BlockKey
		m := msg("bad", "key")
		m.Payload = []byte{0, 255, '\n'}
		m.Metadata["a"] = "ü"
		put(t, db, config, "topic", m, msg("free", ""))
		f := start(t, db, b, cfg)
		drained(t, db)
		require.NoError(t, f.Close())

		letters := deadLetters(t, db, config)
		listed, err := letters.List(t.Context(), forwarder.Filter{MessageID: "bad"})
		require.NoError(t, err)
		require.Len(t, listed, 1)
		require.Nil(t, listed[0].Payload)
		got, err := letters.Get(t.Context(), listed[0].ID)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), got.CreatedAt, time.Minute)
		require.WithinDuration(t, time.Now(), got.LastFailedAt, time.Minute)
		require.Equal(t, forwarder.Letter{
			Stored: forwarder.Stored{
				ID: got.ID, Position: 1, MessageID: "bad", Topic: "topic", OrderingKey: "key", Payload: []byte{0, 255, '\n'}, Size: 3,
				Metadata: message.Metadata{"a": "ü", outbox.OrderingKey: "key"}, CreatedAt: got.CreatedAt,
			},
			Attempts: 1, Error: "too large", Reason: "unacceptable", BlocksKey: true, LastFailedAt: got.LastFailedAt,
		}, got)

		_, err = letters.Get(t.Context(), 4711)
		require.ErrorIs(t, err, forwarder.ErrNotFound)
		free, err := letters.List(t.Context(), forwarder.Filter{MessageID: "free"})
		require.NoError(t, err)
		require.False(t, free[0].BlocksKey)
		require.Empty(t, free[0].OrderingKey)
	})
}

func TestLettersByPage(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		bury(t, db, msg("a", ""), msg("b", ""), msg("c", ""))
		letters := deadLetters(t, db, config)
		page := forwarder.Filter{Limit: 2}
		first, err := letters.List(t.Context(), page)
		require.NoError(t, err)
		require.Len(t, first, 2)
		page.AfterID = first[1].ID
		second, err := letters.List(t.Context(), page)
		require.NoError(t, err)
		require.Len(t, second, 1)
		require.Equal(t, []string{"a", "b", "c"}, []string{first[0].MessageID, first[1].MessageID, second[0].MessageID})
		n, err := letters.Count(t.Context(), forwarder.Filter{Limit: 1, AfterID: first[0].ID})
		require.NoError(t, err)
		require.Equal(t, 2, n, "what matches is counted, whatever the Limit")
	})
}

// filters are one that matches the message that described makes, by each field,
// and one that does not.
func filters(id int64) map[string][2]forwarder.Filter {
	type filter = forwarder.Filter
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

func TestFiltersOfLetters(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		bury(t, db, described())
		bare := msg("bare", "")
		bury(t, db, bare)
		exec(t, db, `UPDATE once_outbox_dead SET topic = 'bare', reason = 'unacceptable' WHERE message_id = 'bare'`)
		age(t, db, "once_outbox_dead", "died_at", 2*time.Hour, `message_id = 'bare'`)
		odd := `null`
		if config.Dialect == schema.SQLite {
			odd = `not JSON`
		}
		exec(t, db, `UPDATE once_outbox_dead SET metadata = '`+odd+`' WHERE message_id = 'bare'`)

		letters := deadLetters(t, db, config)
		all := filters(1)
		all["Reason"] = [2]forwarder.Filter{{Reason: forwarder.ReasonExhausted}, {Reason: forwarder.ReasonMalformed}}
		now := time.Now()
		all["FailedAfter"] = [2]forwarder.Filter{{FailedAfter: now.Add(-time.Hour)}, {FailedAfter: now.Add(time.Hour)}}
		all["FailedBefore"] = [2]forwarder.Filter{{FailedBefore: now.Add(time.Hour)}, {FailedBefore: now.Add(-time.Hour)}}
		all["AfterID"] = [2]forwarder.Filter{{MessageID: "described"}, {AfterID: 2}}
		for name, pair := range all {
			for i, f := range pair {
				found, err := letters.List(t.Context(), f)
				require.NoError(t, err, name)
				n, err := letters.Count(t.Context(), f)
				require.NoError(t, err, name)
				require.Len(t, found, n, name)
				switch {
				case name == "FailedBefore" && i == 0:
					require.Len(t, found, 2)
				case name == "FailedBefore":
					require.Equal(t, "bare", found[0].MessageID)
					require.Empty(t, found[0].Metadata)
				case i == 0:
					require.Len(t, found, 1, name)
					require.Equal(t, "described", found[0].MessageID, name)
				default:
					require.Empty(t, found, name)
				}
			}
		}
	})
}

func TestLettersGoBack(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		m := described()
		m.Payload = []byte{0, 255}
		put(t, db, config, "t", msg("earlier", ""))
		bury(t, db, m, msg("free", ""), msg("other", ""))
		exec(t, db, `UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id = 'free'`)
		letters := deadLetters(t, db, config)
		chosen := forwarder.Filter{IDs: []int64{1, 2, 4711}}
		var progress []int
		report, err := letters.ReplayMatching(t.Context(), ann, chosen, forwarder.Plan{
			Progress: func(r forwarder.Report) { progress = append(progress, r.Replayed) },
		})
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 2, Replayed: 2}, report)
		require.Equal(t, []int{2}, progress)
		require.Equal(t, 1, dead(t, db))
		require.Equal(t, []string{
			"ann | replay | dead:1 | described | the queue is back",
			"ann | replay | dead:2 | free | the queue is back",
		}, audits(t, db))
		require.Equal(t, 2, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0 AND due_at IS NULL AND position IN (2, 3)`))
		require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE unknown AND message_id = 'free'`))

		// They are where the outbox would have put them.
		put(t, db, config, "t", msg("free", ""), msg("same key", `it's "k"`))
		require.Equal(t, 2, count(t, db, `SELECT COUNT(DISTINCT slot) FROM once_outbox WHERE position > 1`))

		b := newBroker()
		start(t, db, &pipelined{broker: b}, quick(config))
		drained(t, db)
		require.Equal(t, []string{"earlier", "described", "free", "same key"}, b.ids(nil))
		require.Equal(t, "\x00\xff", b.stored[1].payload)
		require.Equal(t, m.Metadata, b.stored[1].metadata)
	})
}

func TestADryRunChangesNothing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		bury(t, db, msg("a", "key"), msg("b", ""), msg("old", ""))
		exec(t, db, `UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id = 'old'`)
		age(t, db, "once_outbox_dead", "died_at", 8*24*time.Hour, `message_id = 'old'`)
		letters := deadLetters(t, db, config)
		report, err := letters.DryRun(t.Context(), anybody, forwarder.Plan{})
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 3, Replayed: 2, Skipped: []int64{3}}, report)
		report, err = letters.DryRun(t.Context(), forwarder.Filter{All: true, Limit: 1}, forwarder.Plan{Force: true})
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 1, Replayed: 1}, report)
		_, err = letters.DryRun(t.Context(), forwarder.Filter{}, forwarder.Plan{})
		require.ErrorContains(t, err, "set All")
		require.Equal(t, 3, dead(t, db))
		require.Zero(t, pending(t, db))
		require.Empty(t, audits(t, db))
	})
}

func TestTrap72_WhatConsumersMayHaveForgottenNeedsForce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		bury(t, db, msg("unknown, old", ""), msg("unknown, new", ""), msg("known, old", ""))
		exec(t, db, `UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id LIKE 'unknown%'`)
		age(t, db, "once_outbox_dead", "died_at", 25*time.Hour, `message_id LIKE '%old'`)
		letters := deadLetters(t, db, config)
		options := forwarder.Plan{Remembered: 24 * time.Hour}
		report, err := letters.ReplayMatching(t.Context(), ann, anybody, options)
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 3, Replayed: 2, Skipped: []int64{1}}, report)
		require.Zero(t, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE message_id = 'unknown, old'`))
		require.Len(t, audits(t, db), 2)

		options.Force = true
		report, err = letters.ReplayMatching(t.Context(), ann, anybody, options)
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 1, Replayed: 1}, report)
		require.Equal(t, 3, pending(t, db))
	})
}

func TestWhatTheOutboxWouldRefuseNeedsForce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		bury(t, db, msg("malformed", ""), msg("invalid", ""), msg("exhausted", ""))
		exec(t, db, `UPDATE once_outbox_dead SET reason = message_id`)
		letters := deadLetters(t, db, config)
		report, err := letters.ReplayMatching(t.Context(), ann, anybody, forwarder.Plan{})
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 3, Replayed: 1, Skipped: []int64{1, 2}}, report)
		report, err = letters.ReplayMatching(t.Context(), ann, forwarder.Filter{Reason: "invalid"}, forwarder.Plan{Force: true})
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 1, Replayed: 1}, report)
	})
}

func TestActsOnLettersAreRefused(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		bury(t, db, msg("a", ""))
		letters := deadLetters(t, db, config)
		replay := func(act forwarder.Act, f forwarder.Filter, o forwarder.Plan) error {
			_, err := letters.ReplayMatching(t.Context(), act, f, o)
			return err
		}
		discard := func(act forwarder.Act, f forwarder.Filter) error {
			_, err := letters.DiscardMatching(t.Context(), act, f)
			return err
		}
		nobody := forwarder.Act{Why: "because"}
		for field, err := range map[string]error{
			"Filter":     replay(ann, forwarder.Filter{}, forwarder.Plan{}),
			"All":        discard(ann, forwarder.Filter{}),
			"Actor":      replay(nobody, anybody, forwarder.Plan{}),
			"Actor is":   discard(nobody, anybody),
			"Actor is e": letters.Release(t.Context(), nobody, "key"),
			"Why":        discard(forwarder.Act{Actor: "ann"}, anybody),
			"Rate":       replay(ann, anybody, forwarder.Plan{Rate: -1}),
			"Limit":      replay(ann, forwarder.Filter{All: true, Limit: -1}, forwarder.Plan{}),
			"AfterID":    replay(ann, forwarder.Filter{All: true, AfterID: -1}, forwarder.Plan{}),
			"set All":    replay(ann, forwarder.Filter{AfterID: 1, Limit: 1}, forwarder.Plan{}),
			"All is set": discard(ann, forwarder.Filter{All: true, Topic: "t"}),
			"Reason":     discard(ann, forwarder.Filter{Reason: "misspelt"}),
			"SentAfter":  discard(ann, forwarder.Filter{SentAfter: time.Now()}),
			"not after":  discard(ann, forwarder.Filter{FailedAfter: time.UnixMilli(2), FailedBefore: time.UnixMilli(2)}),
			"Remembered": replay(ann, anybody, forwarder.Plan{Remembered: -1}),
		} {
			require.ErrorContains(t, err, field)
		}
		require.ErrorIs(t, letters.Release(t.Context(), ann, "key"), forwarder.ErrNotBlocked)
		require.NoError(t, replay(ann, forwarder.Filter{IDs: []int64{}}, forwarder.Plan{}), "of nothing")
		require.Equal(t, 1, dead(t, db))
		require.Empty(t, audits(t, db))
		_, err := forwarder.NewDeadLetters(nil, schema.Config{Prefix: "-"})
		require.ErrorContains(t, err, "db is nil")
		require.ErrorContains(t, err, "Prefix")
	})
}

func TestTrap52_TwoReplaysAtTheSameTime(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const letters = 450
		var msgs []*message.Message
		for i := range letters {
			msgs = append(msgs, msg(fmt.Sprint(i), ""))
		}
		bury(t, db, msgs...)
		var (
			done    [3]forwarder.Report
			errs    [3]error
			working sync.WaitGroup
		)
		for i := range done {
			working.Go(func() {
				done[i], errs[i] = deadLetters(t, db, config).ReplayMatching(t.Context(), ann, anybody, forwarder.Plan{})
			})
		}
		working.Wait()
		require.NoError(t, errors.Join(errs[:]...))
		require.Equal(t, letters, done[0].Replayed+done[1].Replayed+done[2].Replayed)
		require.Equal(t, letters, pending(t, db))
		require.Equal(t, letters, count(t, db, `SELECT COUNT(DISTINCT message_id) FROM once_outbox`))
		require.Len(t, audits(t, db), letters)
		require.Zero(t, dead(t, db))
	})
}

func TestAReplayIsCancelled(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var msgs []*message.Message
		for i := range 30 {
			msgs = append(msgs, msg(fmt.Sprint(i), ""))
		}
		bury(t, db, msgs...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		report, err := deadLetters(t, db, config).ReplayMatching(ctx, ann, anybody, forwarder.Plan{
			Rate: 20, // 5 a batch
			Progress: func(r forwarder.Report) {
				if r.Replayed == 10 {
					cancel()
				}
			},
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, forwarder.Report{Total: 30, Replayed: 10}, report)
		require.GreaterOrEqual(t, time.Since(began), 240*time.Millisecond, "the rate was kept")
		require.Equal(t, 10, pending(t, db))
		require.Equal(t, 20, dead(t, db))
		require.Len(t, audits(t, db), 10)

		report, err = deadLetters(t, db, config).ReplayMatching(t.Context(), ann, forwarder.Filter{All: true, Limit: 3}, forwarder.Plan{})
		require.NoError(t, err)
		require.Equal(t, forwarder.Report{Total: 3, Replayed: 3}, report)
		require.Equal(t, 13, pending(t, db))
	})
}

// What is put back and dies again while the replay runs is not its business.
func TestAReplayEnds(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		bury(t, db, msg("a", ""), msg("b", ""), msg("c", ""))
		report, err := deadLetters(t, db, config).ReplayMatching(t.Context(), ann, anybody, forwarder.Plan{
			Rate:     8, // 2 a batch
			Progress: func(forwarder.Report) { bury(t, db, msg("again", "")) },
		})
		require.NoError(t, err)
		require.Equal(t, 3, report.Replayed)
	})
}

// TestAMessageIsRemovedWhileItIsBuried has somebody remove a row between the
// letter's insert and the row's deletion, as the instance that had the slot
// before does when a confirm comes late. There is no letter then.
func TestAMessageIsRemovedWhileItIsBuried(t *testing.T) {
	db := postgres(t)
	exec(t, db, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END'`)
	exec(t, db, `CREATE TRIGGER wait BEFORE INSERT ON once_outbox_dead FOR EACH ROW EXECUTE FUNCTION wait()`)
	barrier, err := db.Begin()
	require.NoError(t, err)
	defer func() { _ = barrier.Rollback() }()
	_, err = barrier.Exec(`SELECT pg_advisory_xact_lock(1)`)
	require.NoError(t, err)

	b := newBroker().answering(func(d delivery) error {
		if d.id == "bad" {
			return hopeless{errors.New("too large")}
		}
		return nil
	})
	start(t, db, b, quick(schema.Config{}))
	put(t, db, schema.Config{}, "t", msg("bad", ""))
	eventually(t, "it is being buried", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()`) == 1
	})
	exec(t, db, `DELETE FROM once_outbox WHERE message_id = 'bad'`)
	require.NoError(t, barrier.Rollback())
	put(t, db, schema.Config{}, "t", msg("good", ""))
	drained(t, db)
	require.Zero(t, dead(t, db))
}
