package oncetest_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/oncetest"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// recorder is a test that may fail. It records why it failed or was skipped.
type recorder struct {
	testing.TB

	said    string // text of Fatal or Skip
	skipped bool
	subs    map[string]*recorder
}

func (r *recorder) Run(name string, f func(*recorder)) bool {
	sub := &recorder{TB: r.TB, subs: map[string]*recorder{}}
	r.subs[name] = sub
	sub.do(f)
	return sub.said == ""
}

// do runs f in a goroutine, so that Fatal can end f.
func (r *recorder) do(f func(*recorder)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
}

func (r *recorder) Fatal(args ...any) {
	r.said = fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

func (r *recorder) Skip(args ...any) {
	r.skipped = true
	r.Fatal(args...)
}

func examine(t *testing.T, config oncetest.Config) *recorder {
	t.Helper()
	r := &recorder{TB: t, subs: map[string]*recorder{}}
	r.do(func(r *recorder) { oncetest.Run(r, config) })
	return r
}

// failed returns the sorted names of the subtests that failed.
func (r *recorder) failed() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(r.subs)) {
		if r.subs[name].said != "" && !r.subs[name].skipped {
			names = append(names, name)
		}
	}
	return names
}

// mustFail fails the test unless the subtest with this name has failed with a text that
// contains all words. The name "" stands for the examined test itself.
func (r *recorder) mustFail(name string, words ...string) {
	r.Helper()
	sub := r
	if name != "" {
		if sub = r.subs[name]; sub == nil {
			r.Errorf("there is no subtest %q, only %q", name, slices.Sorted(maps.Keys(r.subs)))
			return
		}
	}
	for _, word := range words {
		if !strings.Contains(sub.said, word) {
			r.Errorf("%q says\n%s\nnot %q", name, sub.said, word)
		}
	}
}

// mustSay is like mustFail, but compares the whole text.
func (r *recorder) mustSay(name, text string) {
	r.Helper()
	said := r.said
	if sub := r.subs[name]; sub != nil {
		said = sub.said
	}
	if said != text {
		r.Errorf("%q says\n%s\nwant\n%s", name, said, text)
	}
}

// mustPass fails the test if a subtest has failed, or if another number of subtests
// ran.
func (r *recorder) mustPass(subtests int) {
	r.Helper()
	for _, name := range r.failed() {
		r.Errorf("%s: %s", name, r.subs[name].said)
	}
	if r.said != "" || len(r.subs) != subtests {
		r.Errorf("said %q, %d subtests: %q", r.said, len(r.subs), slices.Sorted(maps.Keys(r.subs)))
	}
}

// shop is a database that contains the tables of the tested handlers. The tables have
// no unique constraints, so that a repeated effect is visible.
type shop struct {
	kit.Database

	config schema.Config
}

func newShop(t *testing.T, db kit.Database) shop {
	t.Helper()
	s := shop{db, schema.Config{Dialect: schema.Dialect(db.Dialect)}}
	kit.OK(t, schema.Up(t.Context(), db.DB, s.config))
	for _, statement := range []string{
		`CREATE TABLE payments (order_id text NOT NULL, amount integer NOT NULL)`,
		`CREATE TABLE audit (what text NOT NULL)`,
		`CREATE TABLE totals (name text PRIMARY KEY, sum integer NOT NULL, last text NOT NULL)`,
	} {
		kit.Exec(t, db, statement)
	}
	return s
}

func reset(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `
		DELETE FROM payments; DELETE FROM audit; DELETE FROM totals;
		INSERT INTO totals (name, sum, last) VALUES ('all', 100, '')`)
	return err
}

// examined returns a Config that tests handler in this shop with two messages.
func (s shop) examined(handler func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error)) oncetest.Config {
	return oncetest.Config{
		DB: s.DB, Handler: handler, Reset: reset, Dedup: dedup.Config{Schema: s.config},
		Messages: []*message.Message{
			message.NewMessage("m1", []byte("order-1")),
			message.NewMessage("m2", []byte("order-2")),
		},
	}
}

func each(t *testing.T, test func(t *testing.T, s shop)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(t, newShop(t, db)) })
}

// pay is a handler for which the test passes: it writes only in its transaction, and
// its writes depend only on the message and the database.
func pay(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id, amount) VALUES ($1, 5)`, string(msg.Payload)); err != nil {
		return nil, err
	}
	_, err := tx.ExecContext(ctx, `UPDATE totals SET sum = sum + 5 WHERE name = 'all'`)
	return nil, err
}
