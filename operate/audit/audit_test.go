package audit_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/audit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

func newLog(t *testing.T, db kit.Database) *audit.Log {
	t.Helper()
	config := kit.Tables(t, db)
	log, err := audit.New(db.DB, config)
	kit.OK(t, err)
	return log
}

// hours returns an SQL expression for the time n hours from now.
func hours(db kit.Database, n int) string {
	if db.Dialect == "sqlite" {
		return fmt.Sprintf(`CAST(unixepoch('subsec') * 1000 AS INTEGER) + %d`, n*3_600_000)
	}
	return fmt.Sprintf(`now() + %d * interval '1 hour'`, n)
}

func subjects(p operate.Page[audit.Record]) string {
	var all []string
	for _, r := range p.Rows {
		all = append(all, r.Subject)
	}
	return strings.Join(all, " ")
}

func TestListSelects(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		log := newLog(t, db)
		page, err := log.List(t.Context(), audit.Filter{})
		kit.OK(t, err)
		if want := (operate.Page[audit.Record]{}); !reflect.DeepEqual(page, want) {
			t.Fatalf("page is %+v, want %+v", page, want)
		}
		kit.Exec(t, db, `INSERT INTO once_audit (at, actor, action, subject, consumer, message_id, why, replay_id) VALUES
			(`+hours(db, -3)+`, 'ann', 'replay', 'parked:1', 'payments', 'm1', 'repaired', 7),
			(`+hours(db, -1)+`, 'bob', 'discard', 'dead:2', '', 'm2', 'a test', NULL),
			(`+hours(db, 0)+`, 'ann', 'retry', 'outbox:3', '', 'm1', '', NULL)`)
		now := time.Now()
		for want, f := range map[string]audit.Filter{
			"outbox:3 dead:2 parked:1": {},
			"outbox:3 parked:1":        {Actor: "ann"},
			"outbox:3 parked:1 ":       {MessageID: "m1"},
			"dead:2":                   {Action: "discard"},
			"parked:1":                 {Consumer: "payments"},
			"parked:1 ":                {ReplayID: 7},
			"outbox:3":                 {Subject: "outbox:3"},
			"outbox:3 dead:2":          {After: now.Add(-2 * time.Hour)},
			"parked:1  ":               {Before: now.Add(-2 * time.Hour)},
			"outbox:3 ":                {Limit: 1},
			"dead:2 parked:1":          {BeforeID: 3},
			"":                         {Actor: "eve"},
		} {
			page, err := log.List(t.Context(), f)
			kit.OK(t, err)
			if got, wanted := subjects(page), strings.TrimSpace(want); got != wanted {
				t.Fatalf("subjects(page) is %q, want %q: %+v", got, wanted, f)
			}
		}
		page, err = log.List(t.Context(), audit.Filter{Limit: 2})
		kit.OK(t, err)
		if page.Next != 2 {
			t.Fatalf("page.Next is %d, want 2", page.Next)
		}
		page, err = log.List(t.Context(), audit.Filter{Limit: 2, BeforeID: page.Next})
		kit.OK(t, err)
		if page.Next != 0 {
			t.Fatalf("page.Next is %d, want 0", page.Next)
		}
		first := page.Rows[0]
		if got := time.Since(first.At).Seconds(); math.Abs(got-3*3600) > 60 {
			t.Fatalf("time.Since(first.At).Seconds is %v, want 3*3600, give or take 60", got)
		}
		first.At = time.Time{}
		want := audit.Record{
			ID: 1, Actor: "ann", Action: "replay", Subject: "parked:1", Consumer: "payments", MessageID: "m1", Why: "repaired", ReplayID: 7,
		}
		if !reflect.DeepEqual(first, want) {
			t.Fatalf("first is %+v, want %+v", first, want)
		}
	})
}

// A call reads a limited number of acts, and returns where the next call must begin.
func TestListIsBounded(t *testing.T) {
	db := kit.Postgres(t)
	log := newLog(t, db)
	kit.Exec(t, db, `INSERT INTO once_audit (actor, action, subject)
		SELECT CASE WHEN n = 5 THEN 'ann' ELSE 'bob' END, 'replay', 'parked:' || n FROM generate_series(1, 45000) AS n`)
	var found []string
	calls := 0
	for f := (audit.Filter{Actor: "ann"}); ; calls++ {
		page, err := log.List(t.Context(), f)
		kit.OK(t, err)
		found = append(found, subjects(page))
		if f.BeforeID = page.Next; page.Next == 0 {
			break
		}
	}
	if want := []string{"", "", "parked:5"}; !slices.Equal(found, want) {
		t.Fatalf("found is %q, want %q", found, want)
	}
}

func TestBadInputIsRefused(t *testing.T) {
	_, err := audit.New(nil, schema.Config{})
	if err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Fatalf(`got %v, want an error with "db is nil"`, err)
	}
	log := newLog(t, kit.SQLite(t))
	now := time.Now()
	_, err = log.List(t.Context(), audit.Filter{Limit: -1, BeforeID: -2, ReplayID: -3, After: now, Before: now})
	for _, text := range []string{"Limit is -1", "BeforeID is -2", "ReplayID is -3", "Before is not after After"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Fatalf("got %v, want an error with %q", err, text)
		}
	}
}
