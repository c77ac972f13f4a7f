package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/lib/pq"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
)

const onHandlers = "handlers"

func handlerFaults() []fault {
	var all []fault
	for _, c := range []struct{ name, about, kind, reason string }{
		{"handler-fails", "handlers fail, each time", hopeless, poison.ReasonExhausted},
		{"handler-panics", "handlers panic, each time", panicking, poison.ReasonExhausted},
		{"handler-times-out", "handlers have their statements cancelled, each time", timingOut, poison.ReasonExhausted},
		{"handler-leaves-open", "handlers fail while a result set is open, each time", leavingOpen, poison.ReasonExhausted},
		{"handler-ends-tx", "handlers roll their transaction back and begin another, each time", endingTx, poison.ReasonPermanent},
		{"handler-ends-session", "handlers end their own database session, each time", endingSession, poison.ReasonExhausted},
		{"handler-exits", "handlers call os.Exit, each time", exiting, poison.ReasonCrashed},
	} {
		all = append(all, fault{
			name: c.name, about: c.about + ": the messages are quarantined", on: onHandlers,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.poisoned(ctx, c.kind, c.reason, 1+s.IntN(3))
			},
		})
	}
	return append(all,
		fault{
			name: "replay", about: "quarantined messages are replayed before and after their handler was mended", on: onHandlers,
			strike: func(ctx context.Context, s *strike) (string, error) { return s.replay(ctx, false) },
		},
		fault{
			name: "replay-and-retention", about: "the same, while what is too old is swept", on: onHandlers,
			strike: func(ctx context.Context, s *strike) (string, error) { return s.replay(ctx, true) },
		},
	)
}

func (s *strike) poisoned(ctx context.Context, kind, reason string, count int) (string, error) {
	if err := s.exec(ctx, `DELETE FROM mended WHERE kind = $1`, kind); err != nil {
		return "", err
	}
	var before int64
	err := s.until(ctx, "those of before are counted", func() bool {
		before = s.written(ctx, kind)
		return before >= 0
	})
	if err != nil {
		return "", err
	}
	s.pick(writing).tell(order{Do: doWrite, Kind: kind, Count: count})
	var stored int64
	err = s.until(ctx, "they are in quarantine for "+reason, func() bool {
		stored = s.number(ctx, `
			SELECT COUNT(*) FROM once_parked JOIN business USING (message_id)
			WHERE state = 'quarantined' AND reason = $1 AND kind = $2`, reason, kind)
		return s.written(ctx, kind) > before && stored >= int64(count)
	})
	return fmt.Sprintf("%d are in quarantine", stored), err
}

func (s *strike) written(ctx context.Context, kind string) int64 {
	return s.number(ctx, `SELECT COUNT(*) FROM business WHERE kind = $1`, kind)
}

// replay replays all hopeless messages, which fail again. Then it repairs the handler for
// them, and replays them until they succeed. If retention is true, it also
// inserts expired rows, and waits until the sweep has deleted some of them.
func (s *strike) replay(ctx context.Context, retention bool) (string, error) {
	if _, err := s.poisoned(ctx, hopeless, poison.ReasonExhausted, 5); err != nil {
		return "", err
	}
	store, err := quarantine.New(s.db, operate.Config{})
	if err != nil {
		return "", err
	}
	swept := s.growing(func() int64 { return s.count(consuming, "once.dedup.swept") })
	again := s.growing(func() int64 { return s.count(consuming, "once.poison.failed_again") })
	if retention {
		if err := s.age(ctx); err != nil {
			return "", err
		}
	}
	if err := s.replayed(ctx, store, operate.Filter{Consumer: ledger, Reason: poison.ReasonExhausted}); err != nil {
		return "", err
	}
	if err := s.until(ctx, "the replay failed", func() bool { return again() > 0 }); err != nil {
		return "", err
	}
	if err := s.exec(ctx, `INSERT INTO mended VALUES ($1) ON CONFLICT DO NOTHING`, hopeless); err != nil {
		return "", err
	}
	if retention {
		if err := s.age(ctx); err != nil {
			return "", err
		}
	}
	if err := s.replayed(ctx, store, operate.Filter{Consumer: ledger, Reason: poison.ReasonExhausted}); err != nil {
		return "", err
	}
	var left int64
	err = s.until(ctx, "the replay is applied", func() bool {
		left = s.number(ctx, `SELECT COUNT(*) FROM business AS b WHERE kind = $1 AND NOT EXISTS (
			SELECT 1 FROM effects WHERE message_id = b.message_id)`, hopeless)
		return left == 0
	})
	if err == nil && retention {
		err = s.until(ctx, "rows were swept", func() bool { return swept() > 0 })
	}
	return fmt.Sprintf("%d failed again, then all were applied; %d rows were swept", again(), swept()), err
}

// replayed calls ReplayMatching, and repeats the call until it succeeds. A call fails,
// for example, if the database is down.
func (s *strike) replayed(ctx context.Context, store *quarantine.Entries, f operate.Filter) error {
	var failure error
	err := s.until(ctx, "a replay came to its end", func() bool {
		_, failure = store.ReplayMatching(ctx, operate.Act{Actor: "chaos", Why: "to see whether it works"}, f, operate.Plan{})
		return failure == nil
	})
	return errors.Join(err, failure)
}

// age inserts expired rows that belong to no message, so that the sweep has rows to
// delete. It does not make the rows of real messages expire, because these rows must stay
// as long as duplicates can arrive.
func (s *strike) age(ctx context.Context) error {
	return errors.Join(
		s.exec(ctx, `
			INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
			SELECT 'old-' || gen_random_uuid(), $1, '', now() - interval '1 year' FROM generate_series(1, 5000)`, ledger),
		s.exec(ctx, `
			INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, finished_at)
			SELECT $1, $1, 'old-' || gen_random_uuid(), '', '', 'resolved', now(), now() - interval '1 year'
			FROM generate_series(1, 5000)`, ledger))
}

// intentFaults returns the faults of a consumer that carries out intents. Each of its messages is
// an intent to send a mail. The mail provider is a table that is not part of the handler's
// transaction. It sends a mail for every request, even for a repeated one. But it can also tell
// whether it has sent a mail.
func intentFaults() []fault {
	return []fault{{
		name: "intents", about: "mails are sent, and then the handler fails or its process is killed before the commit", on: onHandlers,
		// If the database is frozen during the request, the provider sends the mail long after
		// the request. A consumer cannot guard against this.
		alone:  true,
		strike: intents,
	}}
}

const intentCount = 40

// carryOut sends the mail of an intent, unless the provider says that an earlier attempt
// has sent the mail. After sending a mail, carryOut returns an error, so that this
// attempt is rolled back. The next attempt must then find out that the mail was sent.
func (c *consumer) carryOut(ctx context.Context, reference string) error {
	var sent bool
	err := c.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM mails WHERE reference = $1)`, reference).Scan(&sent)
	if err != nil {
		return err
	}
	if sent {
		c.tally.add(intentsFound, 1)
		if !c.planted(plantIntents) {
			return nil
		}
	}
	if _, err := c.db.ExecContext(ctx, `INSERT INTO mails (reference) VALUES ($1)`, reference); err != nil || sent {
		return err
	}
	return errors.New("the handler has sent the mail, and fails")
}

// intentsFound is the name of a counter. It counts the intents whose mail was sent by
// an earlier attempt.
const intentsFound = "intents/found"

// intents writes intents. When some of their mails have been sent, it kills a consumer.
func intents(ctx context.Context, s *strike) (string, error) {
	found := s.growing(func() int64 { return s.count(consuming, intentsFound) })
	var events []event
	var ids []string
	for n := range intentCount {
		e := event{id: fmt.Sprintf("intent-%d.%d", s.Uint64(), n), kind: intended}
		events, ids = append(events, e), append(ids, e.id)
	}
	if err := s.write(ctx, events...); err != nil {
		return "", err
	}
	some := 1 + s.Int64N(intentCount/2)
	err := s.until(ctx, "some mails are sent", func() bool {
		return s.number(ctx, `SELECT COUNT(*) FROM mails WHERE reference = ANY($1)`, pq.Array(ids)) >= some
	})
	if err != nil {
		return "", err
	}
	<-s.pick(consuming).signal(syscall.SIGKILL).gone
	err = s.until(ctx, "all intents are settled", func() bool {
		return s.number(ctx, `SELECT COUNT(DISTINCT message_id) FROM (`+settled+`) AS s WHERE message_id = ANY($1)`, pq.Array(ids)) == intentCount
	})
	if err != nil {
		return "", err
	}
	return s.seen(ctx, intentsFound, found, nil)
}

// intents checks that no mail was sent twice, and that each applied intent has its mail.
func (a *audit) intents(ctx context.Context) error {
	twice, err := a.ids(ctx, `SELECT reference FROM mails GROUP BY reference HAVING COUNT(*) > 1`)
	if err != nil {
		return err
	}
	missing, err := a.ids(ctx, `
		SELECT message_id FROM effects JOIN business USING (message_id) WHERE kind = $1
		EXCEPT SELECT reference FROM mails`, intended)
	a.Doubled += len(twice)
	a.Lost += len(missing)
	a.example("mails that were sent twice", twice)
	a.example("intents without a mail", missing)
	return err
}
