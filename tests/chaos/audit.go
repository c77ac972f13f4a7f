package main

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
)

// audit compares the final state of the database with three records: the journals of the
// writers, the deliveries that the recorder saw, and the messages that the test has
// published directly to the broker.
type audit struct {
	*world
	*report

	lost, doubled []string // ids
}

func (w *world) audit(ctx context.Context, r *report) error {
	a := &audit{world: w, report: r}
	for _, check := range []func(context.Context) error{
		a.effects, a.phantoms, a.journals, a.leftovers, a.quarantine, a.order, a.versions, a.intents, a.pauses, a.services,
	} {
		if err := check(ctx); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	return nil
}

func (a *audit) ids(ctx context.Context, query string, args ...any) ([]string, error) {
	return idsIn(ctx, a.db, query, args...)
}

func idsIn(ctx context.Context, db *sql.DB, query string, args ...any) ([]string, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// settled is a query for the messages in a final state: applied, quarantined, discarded,
// or a dead letter. Collisions do not count: a collision uses the id of another message,
// which is counted itself.
const settled = `
	SELECT message_id FROM effects
	UNION ALL SELECT message_id FROM once_parked WHERE state IN ('quarantined', 'discarded') AND reason <> '` + poison.ReasonCollision + `'
	UNION ALL SELECT message_id FROM once_outbox_dead`

// effects checks that every committed event is in exactly one final state.
func (a *audit) effects(ctx context.Context) (err error) {
	a.Messages = int(a.number(ctx, `SELECT COUNT(DISTINCT message_id) FROM business`))
	if a.lost, err = a.ids(ctx, `SELECT message_id FROM business EXCEPT (`+settled+`)`); err != nil {
		return err
	}
	a.Lost += len(a.lost)
	// The library does not check every transaction. So a handler that ends its transaction may have an
	// effect, and a later copy of the message is quarantined.
	a.doubled, err = a.ids(ctx, `
		SELECT message_id FROM (`+settled+`) AS s WHERE message_id <> ''
			AND message_id NOT IN (SELECT message_id FROM business JOIN once_parked USING (message_id) WHERE kind = $1 AND reason = $2)
			GROUP BY message_id HAVING COUNT(*) > 1
		UNION SELECT message_id FROM business GROUP BY message_id HAVING COUNT(*) > 1`, endingTx, poison.ReasonPermanent)
	a.Doubled += len(a.doubled)
	if n := a.number(ctx, `SELECT COUNT(*) FROM effects WHERE NOT intact`); n != 0 {
		a.wrongf("%d payloads were altered on the way", n)
	}
	for _, row := range a.Rows {
		row.Lost, row.Doubled = a.during(ctx, row, a.lost), a.during(ctx, row, a.doubled)
	}
	a.example("lost", a.lost)
	a.example("doubled", a.doubled)
	a.places(ctx)
	a.notef("%d effects, %d in quarantine, %d dead letters",
		a.number(ctx, `SELECT COUNT(*) FROM effects`),
		a.number(ctx, `SELECT COUNT(*) FROM once_parked WHERE state = 'quarantined'`),
		a.number(ctx, `SELECT COUNT(*) FROM once_outbox_dead`))
	return err
}

// places adds a note to the report for each of the first five events that were stored
// twice or have several final states. The note lists the effects, rows and inbox
// entries of the event.
func (a *audit) places(ctx context.Context) {
	for _, id := range a.doubled[:min(len(a.doubled), 5)] {
		places, err := a.ids(ctx, `
			SELECT 'effect of ' || consumer FROM effects WHERE message_id = $1
			UNION ALL SELECT concat_ws(' ', consumer, state, reason, error, 'attempts', attempts, 'crashes', crashes, last_failed_at)
				FROM once_parked WHERE message_id = $1
			UNION ALL SELECT concat_ws(' ', 'dead letter', reason, last_error) FROM once_outbox_dead WHERE message_id = $1
			UNION ALL SELECT concat_ws(' ', 'inbox of', consumer, processed_at) FROM once_inbox WHERE message_id = $1`, id)
		a.notef("%s: %s", id, strings.Join(append(places, fmt.Sprint(err)), "; "))
	}
}

// during returns how many of the ids belong to messages that were unfinished while the
// fault of the row r was active.
func (a *audit) during(ctx context.Context, r *row, ids []string) (n int) {
	for _, id := range ids {
		if r.covers(a.number(ctx, `SELECT MIN(serial) FROM business WHERE message_id = $1`, id)) {
			n++
		}
	}
	return n
}

func (a *audit) example(what string, ids []string) {
	if len(ids) > 0 {
		a.notef("%s: %s", what, strings.Join(ids[:min(len(ids), 20)], " "))
	}
}

// phantoms checks that each message that took effect or became a dead letter was
// committed.
func (a *audit) phantoms(ctx context.Context) error {
	ids, err := a.ids(ctx, `
		(SELECT message_id FROM effects UNION SELECT message_id FROM once_outbox_dead) EXCEPT SELECT message_id FROM business`)
	a.Phantoms += len(ids)
	a.example("phantoms", ids)
	return err
}

// journals checks that the database agrees with the journals of the writers. If the result of a
// transaction is unknown, the database must contain either all of its events or none.
func (a *audit) journals(ctx context.Context) error {
	known, err := readJournals(a.dir)
	if err != nil {
		return err
	}
	rows, err := a.db.QueryContext(ctx, `SELECT tx, COUNT(*) FROM business WHERE tx NOT IN ('ours', 'echo') GROUP BY tx`)
	if err != nil {
		return err
	}
	defer rows.Close()
	found := make(map[string]int)
	for rows.Next() {
		var (
			tx string
			n  int
		)
		if err := rows.Scan(&tx, &n); err != nil {
			return err
		}
		found[tx] = n
	}
	states := make(map[byte]int)
	turnedOut := 0
	for tx, e := range known {
		states[e.state]++
		n := found[tx]
		switch {
		case e.state == committed && n != e.events:
			a.Lost += e.events - n
			a.wrongf("transaction %s was committed with %d events, and has %d", tx, e.events, n)
		case e.state == rolledBack && n != 0:
			a.Phantoms += n
			a.wrongf("transaction %s was rolled back, and has %d events", tx, n)
		case e.state == unknown && n != 0 && n != e.events:
			a.wrongf("transaction %s has %d of its %d events", tx, n, e.events)
		case e.state == unknown && n != 0:
			turnedOut++
		}
	}
	for tx := range found {
		if _, ok := known[tx]; !ok {
			a.wrongf("transaction %s is in no journal", tx)
		}
	}
	a.notef("%d transactions were committed, %d rolled back, %d unknown, of which %d turned out to be committed",
		states[committed], states[rolledBack], states[unknown], turnedOut)
	return rows.Err()
}

// leftovers checks that no message or replay in the tables is unfinished.
func (a *audit) leftovers(ctx context.Context) error {
	for _, query := range []string{
		`once_outbox`, `once_blocked_keys`,
		`once_parked WHERE state NOT IN ('quarantined', 'resolved', 'discarded')`,
		`once_parked WHERE state = 'quarantined' AND (owner IS NOT NULL OR token IS NOT NULL)`,
		`once_replays WHERE state <> 'finished'`,
	} {
		if n := a.number(ctx, `SELECT COUNT(*) FROM `+query); n != 0 {
			a.wrongf("%d rows are left: %s", n, query)
		}
	}
	return nil
}

// quarantine checks that each entry equals the message that was sent, byte for byte. It
// also checks that every message that was published directly to the broker has one entry.
func (a *audit) quarantine(ctx context.Context) error {
	store, err := quarantine.New(a.db, operate.Config{})
	if err != nil {
		return err
	}
	outside := a.outside.all()
	seen := make(map[string]int)
	for f := (operate.Filter{Limit: 500}); ; {
		page, err := store.List(ctx, f)
		if err != nil {
			return err
		}
		for _, e := range page.Rows {
			if e.MessageErr != nil {
				a.wrongf("entry %d cannot be read: %v", e.ID, e.MessageErr)
				continue
			}
			body := e.Message.Payload
			if wrong, ok := outside[string(body)]; ok {
				seen[string(body)]++
				if wrong != e.Reason {
					a.wrongf("entry %d is there for %s, not for %s", e.ID, e.Reason, wrong)
				}
				continue
			}
			if !bytes.Equal(body, payload(e.Message.UUID, e.Message.Metadata.Get(headerKind))) {
				a.wrongf("entry %d (%s, %q) is not what was sent", e.ID, e.Reason, e.Message.UUID)
			}
		}
		if f.AfterID = page.Next; page.Next == 0 {
			break
		}
	}
	for body, wrong := range outside {
		if n := seen[body]; n == 0 {
			a.Lost++
			a.wrongf("a message from outside (%s) is not in quarantine", wrong)
		} else if n > 1 && wrong != poison.ReasonInvalidID { // several entries without a usable id cannot be distinguished
			a.Doubled++
			a.wrongf("a message from outside (%s) is in quarantine %d times", wrong, n)
		}
	}
	return nil
}

// order checks that the messages of each key reached the broker in order, and that the
// last message of each key was recorded.
func (a *audit) order(ctx context.Context) error {
	inversions, seen, copies := a.recorder.found()
	a.Inversions = len(inversions)
	a.example("inversions", inversions)
	a.example("never recorded", a.recorder.absent())
	a.notef("%d messages reached the ledger's exchange, %d were copies of keyed ones", seen, copies)
	rows, err := a.db.QueryContext(ctx, `SELECT ordering_key, number FROM keys`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var keys []string
	for rows.Next() {
		var (
			key    string
			number int64
		)
		if err := rows.Scan(&key, &number); err != nil {
			return err
		}
		if last := a.recorder.highest(key); last != number {
			keys = append(keys, fmt.Sprintf("%s: %d of %d", key, last, number))
		}
	}
	if len(keys) > 0 {
		slices.Sort(keys)
		a.wrongf("keys whose last message was not recorded: %s", strings.Join(keys, ", "))
	}
	return rows.Err()
}

// versions checks that the versions of each account were applied in order.
func (a *audit) versions(ctx context.Context) error {
	ids, err := a.ids(ctx, `
		SELECT message_id FROM (
			SELECT message_id, number, MAX(number) OVER (PARTITION BY split_part(message_id, '.', 1) ORDER BY e.serial) AS highest
			FROM effects AS e JOIN business USING (message_id) WHERE consumer = $1
		) AS v WHERE number < highest AND message_id NOT LIKE $2`, accounts, overtaken+"%")
	a.Inversions += len(ids)
	a.example("versions applied after a higher one", ids)
	return err
}
