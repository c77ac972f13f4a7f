package recipes

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/watermill-once/once/outbox"
)

// purchase is an object of a domain: it records an event when it is placed.
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

// ways are the ways to save a purchase in a transaction that may fail after it was
// saved.
func ways(t *testing.T, db *sql.DB) map[string]func(p *purchase, fails error) error {
	t.Helper()
	all := map[string]func(p *purchase, fails error) error{
		"plain": func(p *purchase, fails error) error {
			return Save(t.Context(), db, p, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), `INSERT INTO orders (id, total) VALUES ($1, $2)`, p.ID, p.Total)
				return errors.Join(err, fails)
			})
		},
	}
	for name, prepare := range map[string]bool{"GORM": false, "GORM, with PrepareStmt": true} {
		g := openGORM(t, db, &gorm.Config{DisableNestedTransaction: true, PrepareStmt: prepare})
		require.NoError(t, RegisterEvents(g))
		all[name] = func(p *purchase, fails error) error {
			return Transaction(t.Context(), g, func(tx *gorm.DB) error {
				if err := tx.Create(p).Error; err != nil {
					return err
				}
				return fails
			})
		}
	}
	return all
}

// Recorded events are stored with the object, once. They are removed after the commit,
// and stay after a rollback.
func TestRecordedEventsAreStoredOnce(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		want := 0
		for name, save := range ways(t, db) {
			p := placePurchase(name)
			require.ErrorIs(t, save(p, errUndone), errUndone, name)
			orders, events := stored(t, db)
			require.Equal(t, []int{want, want}, []int{orders, events}, name)
			require.Len(t, p.recorded, 1, name)

			require.NoError(t, save(p, nil), name)
			want++
			orders, events = stored(t, db)
			require.Equal(t, []int{want, want}, []int{orders, events}, name)
			require.Empty(t, p.recorded, name)
		}
	})
}

// GORM stores the events of each object of a slice, and of an object that is saved twice
// in a transaction it stores each event once.
func TestGORMStoresTheEventsOfEachObject(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		g := openGORM(t, db, &gorm.Config{DisableNestedTransaction: true})
		require.NoError(t, RegisterEvents(g))
		both := []*purchase{placePurchase("17"), placePurchase("18")}
		require.NoError(t, Transaction(t.Context(), g, func(tx *gorm.DB) error {
			if err := tx.Create(both).Error; err != nil {
				return err
			}
			both[0].Record(topic, outbox.NewMessage([]byte("17 is changed")))
			if err := tx.Save(both[0]).Error; err != nil {
				return err
			}
			both[1].Record(topic, outbox.NewMessage([]byte("18 is gone")))
			return tx.Delete(both[1]).Error
		}))
		orders, events := stored(t, db)
		require.Equal(t, []int{1, 4}, []int{orders, events})
		require.Empty(t, both[0].recorded)
		require.Empty(t, both[1].recorded)
	})
}

func TestMistakesWithGORMAreErrors(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		require.ErrorContains(t, RegisterEvents(openGORM(t, db, &gorm.Config{})), "DisableNestedTransaction is false")

		g := openGORM(t, db, &gorm.Config{DisableNestedTransaction: true})
		require.NoError(t, RegisterEvents(g))
		require.ErrorIs(t, g.WithContext(context.Background()).Create(placePurchase("17")).Error, errNoTransaction)
		_, err := gormTx(g)
		require.ErrorContains(t, err, "use db.Transaction")
		orders, events := stored(t, db)
		require.Equal(t, []int{0, 0}, []int{orders, events})
	})
}
