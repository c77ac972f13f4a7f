package parked

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// storeIn creates the tables in a database, and returns its Store.
func storeIn(t *testing.T, db testkit.Database) *Store {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	s, err := NewStore(db.DB, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// pollOf returns a Poll whose first result had no due rows, and its Store.
func pollOf(t *testing.T, db testkit.Database) (*Store, *Poll) {
	t.Helper()
	s := storeIn(t, db)
	p := s.Poll()
	if due, err := p.Due(t.Context(), pollSelect); err != nil || due.Fresh() || due.Crashed {
		t.Fatalf("the table is empty, and Due returns %+v, %v", due, err)
	}
	return s, p
}

var pollSelect = Select{Consumer: "consumer", Topic: "topic"}

func TestPollFindsDueRowsOfEachKindAfterAQuietTime(t *testing.T) {
	t.Parallel()
	for kind, change := range map[string]string{
		"live":    `UPDATE once_parked SET priority_class = 'live'`,
		"retry":   `UPDATE once_parked SET priority_class = 'retry'`,
		"replay":  `UPDATE once_parked SET priority_class = 'replay'`,
		"crashed": `UPDATE once_parked SET crashes = 1`,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
				s, p := pollOf(t, db)
				look := func() (fresh, crashed bool) {
					t.Helper()
					due, err := p.Due(t.Context(), pollSelect)
					if err != nil {
						t.Fatal(err)
					}
					return due.Fresh(), due.Crashed
				}
				failure := Failure{Err: errors.New("handler failed")}
				msg := message.NewMessage("m", nil)
				if err := s.Park(t.Context(), &Delivery{Consumer: "consumer", Topic: "topic"}, msg, failure, time.Hour); err != nil {
					t.Fatal(err)
				}
				if _, err := db.ExecContext(t.Context(), change); err != nil {
					t.Fatal(err)
				}
				for range 10 { // PostgreSQL may choose another plan for a prepared query after some executions
					if fresh, crashed := look(); fresh || crashed {
						t.Fatal("a row is due before its time")
					}
				}
				if _, err := db.ExecContext(t.Context(), `UPDATE once_parked SET due_at = `+anHourAgo(db)); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if fresh, crashed := look(); fresh != (kind != "crashed") || crashed != (kind == "crashed") {
						t.Fatalf("a due row is found: %v, one of a process that died: %v", fresh, crashed)
					}
				}
			})
		})
	}
}

func anHourAgo(db testkit.Database) string {
	if db.Dialect == "sqlite" {
		return `due_at - 7200000`
	}
	return `due_at - interval '2 hours'`
}

func TestQuietPollUsesNoTransaction(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.SetMaxOpenConns(1)
	_, p := pollOf(t, db)
	server, err := testkit.Connector(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	observer := sql.OpenDB(server)
	defer func() { _ = observer.Close() }()
	for range 2 {
		if due, err := p.Due(t.Context(), pollSelect); err != nil || due.Fresh() {
			t.Fatalf("Due returns %+v, %v", due, err)
		}
		var last string
		err := observer.QueryRowContext(t.Context(), `SELECT query FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&last)
		if err != nil || strings.EqualFold(last, "commit") {
			t.Errorf("the last statement of the poll is %q (%v)", last, err)
		}
	}
}

// The error of the query outside of a transaction is not returned. The query in a
// transaction returns it.
func TestPollReturnsTheErrorOfTheDatabase(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		_, p := pollOf(t, db)
		if _, err := db.ExecContext(t.Context(), `ALTER TABLE once_parked RENAME TO gone`); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Due(t.Context(), pollSelect); err == nil || !strings.Contains(err.Error(), "look for parked messages") {
			t.Errorf("the table is gone, and the error is %v", err)
		}
		if _, err := db.ExecContext(t.Context(), `ALTER TABLE gone RENAME TO once_parked`); err != nil {
			t.Fatal(err)
		}
		if due, err := p.Due(t.Context(), pollSelect); err != nil || due.Fresh() {
			t.Errorf("the table is back, and Due returns %+v, %v", due, err)
		}
	})
}
