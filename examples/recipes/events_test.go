package recipes

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/watermill-once/once/outbox"
)

// purchase is a domain object. It records an event when it is placed.
type purchase struct {
	Events `gorm:"-"`

	ID    string `gorm:"primaryKey"`
	Total int64
}

func (*purchase) TableName() string { return "orders" }

func placePurchase(id string) *purchase {
	p := &purchase{ID: id, Total: 1290}
	p.Record(topic, outbox.NewMessage([]byte(id)))
	return p
}

var errUndone = errors.New("undone on purpose")

// ways returns functions that save a purchase in a transaction, by name. If the argument
// failure is not nil, the function returns it after the purchase was saved, so that the
// transaction is rolled back.
func ways(t *testing.T, db *sql.DB) map[string]func(p *purchase, failure error) error {
	t.Helper()
	all := map[string]func(p *purchase, failure error) error{
		"plain": func(p *purchase, failure error) error {
			return Save(t.Context(), db, p, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), `INSERT INTO orders (id, total) VALUES ($1, $2)`, p.ID, p.Total)
				return errors.Join(err, failure)
			})
		},
	}
	for name, prepare := range map[string]bool{"GORM": false, "GORM, with PrepareStmt": true} {
		g := openGORM(t, db, &gorm.Config{DisableNestedTransaction: true, PrepareStmt: prepare})
		if err := RegisterEvents(g); err != nil {
			t.Fatal(err)
		}
		all[name] = func(p *purchase, failure error) error {
			return Transaction(t.Context(), g, func(tx *gorm.DB) error {
				if err := tx.Create(p).Error; err != nil {
					return err
				}
				return failure
			})
		}
	}
	return all
}

// Recorded events are stored once, together with the object. The object loses them
// after the commit, and keeps them after a rollback.
func TestRecordedEventsAreStoredOnce(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		want := 0
		for name, save := range ways(t, db) {
			p := placePurchase(name)
			if err := save(p, errUndone); !errors.Is(err, errUndone) {
				t.Fatalf("%s: save: got %v, want errUndone", name, err)
			}
			orders, events := stored(t, db)
			if orders != want || events != want {
				t.Fatalf("%s: orders and events are %d and %d, want %d and %d", name, orders, events, want, want)
			}
			if len(p.recorded) != 1 {
				t.Fatalf("%s: len(p.recorded) is %d, want 1: %+v", name, len(p.recorded), p.recorded)
			}

			if err := save(p, nil); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want++
			orders, events = stored(t, db)
			if orders != want || events != want {
				t.Fatalf("%s: orders and events are %d and %d, want %d and %d", name, orders, events, want, want)
			}
			if len(p.recorded) != 0 {
				t.Fatalf("%s: p.recorded is %+v, want none", name, p.recorded)
			}
		}
	})
}

// GORM stores the events of each object of a slice. If an object is saved twice in a
// transaction, GORM stores each event once.
func TestGORMStoresTheEventsOfEachObject(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		g := openGORM(t, db, &gorm.Config{DisableNestedTransaction: true})
		if err := RegisterEvents(g); err != nil {
			t.Fatal(err)
		}
		both := []*purchase{placePurchase("17"), placePurchase("18")}
		err := Transaction(t.Context(), g, func(tx *gorm.DB) error {
			if err := tx.Create(both).Error; err != nil {
				return err
			}
			both[0].Record(topic, outbox.NewMessage([]byte("17 is changed")))
			if err := tx.Save(both[0]).Error; err != nil {
				return err
			}
			both[1].Record(topic, outbox.NewMessage([]byte("18 is gone")))
			return tx.Delete(both[1]).Error
		})
		if err != nil {
			t.Fatal(err)
		}
		orders, events := stored(t, db)
		if orders != 1 || events != 4 {
			t.Fatalf("orders and events are %d and %d, want 1 and 4", orders, events)
		}
		if len(both[0].recorded) != 0 {
			t.Fatalf("both[0].recorded is %+v, want none", both[0].recorded)
		}
		if len(both[1].recorded) != 0 {
			t.Fatalf("both[1].recorded is %+v, want none", both[1].recorded)
		}
	})
}

func TestMistakesWithGORMAreErrors(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		err := RegisterEvents(openGORM(t, db, &gorm.Config{}))
		if err == nil || !strings.Contains(err.Error(), "DisableNestedTransaction is false") {
			t.Fatalf(`RegisterEvents: got %v, want an error with "DisableNestedTransaction is false"`, err)
		}

		g := openGORM(t, db, &gorm.Config{DisableNestedTransaction: true})
		if err := RegisterEvents(g); err != nil {
			t.Fatal(err)
		}
		if err := g.WithContext(context.Background()).Create(placePurchase("17")).Error; !errors.Is(err, errNoTransaction) {
			t.Fatalf("Create: got %v, want errNoTransaction", err)
		}
		if _, err := gormTx(g); err == nil || !strings.Contains(err.Error(), "use db.Transaction") {
			t.Fatalf(`gormTx: got %v, want an error with "use db.Transaction"`, err)
		}
		orders, events := stored(t, db)
		if orders != 0 || events != 0 {
			t.Fatalf("orders and events are %d and %d, want 0 and 0", orders, events)
		}
	})
}
