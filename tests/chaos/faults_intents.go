package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/lib/pq"
)

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
