package lazytx_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// step is a step of a transaction. It returns what the transaction sees, and an error.
type step struct {
	name string
	do   func(p *play) error
}

// play is a transaction that is executed with and without lazytx.
type play struct {
	*testing.T

	tx            *sql.Tx
	events, other message.Publisher
	n             int
	seen          []string
}

func (p *play) exec(query string) error {
	_, err := p.tx.ExecContext(p.Context(), query)
	return err
}

func (p *play) see(query string) error {
	var seen string
	err := p.tx.QueryRowContext(p.Context(), query).Scan(&seen)
	p.seen = append(p.seen, seen)
	return err
}

func (p *play) id() string {
	p.n++
	return fmt.Sprintf("m%02d", p.n)
}

func text(query string) step {
	return step{query, func(p *play) error { return p.exec(query) }}
}

func look(query string) step {
	return step{query, func(p *play) error { return p.see(query) }}
}

var errUndo = errors.New("undo all")

// steps contains every kind of statement that could notice the late sending of events,
// or could change the effect of the events. No step ends the transaction: InTx always
// refuses this with lazytx, and without lazytx in a sample of the transactions.
var steps = []step{
	{"publish", func(p *play) error { return p.events.Publish("t", event(p.id())) }},
	{"publish two", func(p *play) error { return p.events.Publish("t", event(p.id()), event(p.id())) }},
	{"publish to the other", func(p *play) error { return p.other.Publish("t", event(p.id())) }},
	{"order", func(p *play) error { return p.exec(`INSERT INTO orders VALUES ('` + p.id() + `')`) }},
	{"refused message", func(p *play) error {
		if err := p.events.Publish("t", event("")); !errors.Is(err, outbox.ErrInvalid) {
			return fmt.Errorf("the message was not refused: %w", err)
		}
		return nil
	}},
	{"refused row", func(p *play) error { // with lazytx the error may come later, but not after a savepoint
		err := p.events.Publish("t", event("refund"))
		if err == nil {
			return nil
		}
		_, err = p.tx.ExecContext(p.Context(), `ROLLBACK TO a`)
		return err
	}},
	{"lock", func(p *play) error { return outbox.LockKey(p.Context(), p.tx, "k") }},
	text(`SAVEPOINT a`), text(`SAVEPOINT a`), text(`-- name: b` + "\n" + `savepoint a`), text(`ROLLBACK TO a`), text(`RELEASE a`),
	text(`UPDATE orders SET id = CASE WHEN true THEN id END`),
	text(`SET CONSTRAINTS ALL IMMEDIATE`),
	text(`SET LOCAL search_path = elsewhere, public`), text(`RESET search_path`),
	look(`SELECT set_config('search_path', 'elsewhere, public', true)`),
	look(`SELECT count(*) FROM once_outbox`), look(`SELECT count(*) FROM ONCE_outbox`), look(`EXECUTE count_events`),
	{"prepared", func(p *play) error {
		stmt, err := p.tx.PrepareContext(p.Context(), `SELECT count(*) FROM once_outbox`)
		if err != nil {
			return err
		}
		defer stmt.Close()
		var seen string
		err = stmt.QueryRowContext(p.Context()).Scan(&seen)
		p.seen = append(p.seen, seen)
		return err
	}},
	text(`DELETE FROM once_outbox WHERE message_id < 'm03'`),
	text(`SELECT 1/0`),
	{"an error", func(*play) error { return errUndo }},
}

// rare contains steps that end a play or make it fail. randomSteps chooses them less
// often, so that most plays contain many steps.
var rare = map[string]bool{
	`SELECT 1/0`: true, "an error": true, `RELEASE a`: true, "refused row": true,
}

func randomSteps(random *rand.Rand) (all []step) {
	for range 3 + random.IntN(9) {
		s := steps[random.IntN(len(steps))]
		if rare[s.name] && random.IntN(3) > 0 {
			s = steps[0]
		}
		all = append(all, s)
	}
	return all
}

// result executes steps in a transaction. It returns the results of the steps, and the
// content of the tables afterwards.
func (w *world) result(db *sql.DB, other *outbox.Outbox, all []step) string {
	w.Helper()
	w.exec(`DELETE FROM orders; DELETE FROM once_outbox; DELETE FROM other_outbox; DELETE FROM elsewhere.once_outbox`)
	p := &play{T: w.T}
	err := outbox.InTx(w.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
		p.tx, p.events, p.other = tx, events, other.Publisher(tx)
		for _, s := range all {
			if err := s.do(p); err != nil {
				return err
			}
		}
		return nil
	})
	left := ""
	for _, table := range []string{"once_outbox", "other_outbox", "elsewhere.once_outbox"} {
		left += w.text(`SELECT message_id FROM `+table+` ORDER BY position`) + "; "
	}
	left += w.text(`SELECT id FROM orders ORDER BY id`)
	if err != nil {
		return "failed, left " + left
	}
	return fmt.Sprintf("seen %s, left %s", p.seen, left)
}

// Whatever a transaction does, it reads and writes the same rows as without lazytx.
func TestTransactionsAreTheSameAsWithoutLazytx(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, w *world) {
		other := otherOutbox(t, outbox.Config{Schema: schema.Config{Prefix: "other_"}})
		w.exec(`ALTER TABLE once_outbox ADD CHECK (message_id <> 'refund')`)
		plain := w.open(w.connector)
		prepare := func(db *sql.DB) {
			if column(t, db, `SELECT count(*)::text FROM pg_prepared_statements WHERE name = 'count_events'`) == "1" {
				return // some plays break the connection, and only a new connection needs the statement
			}
			kit.Exec(t, db, `PREPARE count_events AS SELECT count(*) FROM once_outbox`)
		}
		plays := kit.Sized(30, 300)
		random := rand.New(rand.NewPCG(19, 1))
		failed := 0
		for range plays {
			all := randomSteps(random)
			prepare(plain)
			w.db.SetMaxIdleConns(0) // a prepared statement ends all delays of its connection, so each play gets a new connection
			w.db.SetMaxIdleConns(1)
			prepare(w.db)
			want := w.result(plain, other, all)
			if got := w.result(w.db, other, all); got != want {
				var names []string
				for _, s := range all {
					names = append(names, s.name)
				}
				t.Errorf("%s\n got %s\nwant %s", strings.Join(names, "\n"), got, want)
				if failed++; failed == 3 {
					t.FailNow()
				}
			}
		}
	})
}
