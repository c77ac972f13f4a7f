package recipes

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

type place func(ctx context.Context, order Order) error

var recipes = map[string]func(t *testing.T, db *sql.DB) place{
	"GORM":                   gormPlaces(&gorm.Config{}),
	"GORM, with PrepareStmt": gormPlaces(&gorm.Config{PrepareStmt: true}),
	"sqlx": func(_ *testing.T, db *sql.DB) place {
		x := sqlx.NewDb(db, "postgres")
		return func(ctx context.Context, order Order) error { return PlaceWithSqlx(ctx, x, order) }
	},
	"sqlc": func(_ *testing.T, db *sql.DB) place {
		queries := NewQueries(db)
		return func(ctx context.Context, order Order) error { return PlaceWithSqlc(ctx, db, queries, order) }
	},
	"ent": func(_ *testing.T, db *sql.DB) place {
		return func(ctx context.Context, order Order) error { return PlaceWithEnt(ctx, db, order) }
	},
	"bun": func(_ *testing.T, db *sql.DB) place {
		b := bun.NewDB(db, pgdialect.New())
		return func(ctx context.Context, order Order) error { return PlaceWithBun(ctx, b, order) }
	},
}

func gormPlaces(config *gorm.Config) func(t *testing.T, db *sql.DB) place {
	return func(t *testing.T, db *sql.DB) place {
		g := openGORM(t, db, config)
		return func(ctx context.Context, order Order) error { return PlaceWithGORM(ctx, g, order) }
	}
}

func openGORM(t *testing.T, db *sql.DB, config *gorm.Config) *gorm.DB {
	t.Helper()
	own := *config // GORM writes into it
	own.Logger = logger.Discard
	g, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &own)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// The order and its event are either both committed, or both rolled back.
func TestOrderAndEventAreStoredTogether(t *testing.T) {
	t.Parallel()
	for name, recipe := range recipes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachDriver(t, func(t *testing.T, db *sql.DB) {
				place := recipe(t, db)
				if err := place(t.Context(), Order{ID: "17", Total: 1290}); err != nil {
					t.Fatal(err)
				}
				if err := place(t.Context(), Order{ID: "17", Total: 1290}); err == nil {
					t.Fatal("place returned no error: the order exists")
				}
				if err := place(t.Context(), Order{ID: "18", Total: 450}); err != nil {
					t.Fatal(err)
				}
				orders, events := stored(t, db)
				if orders != 2 || events != 2 {
					t.Fatalf("orders and events are %d and %d, want 2 and 2", orders, events)
				}

				execute(t, db, `ALTER TABLE once_outbox ADD CONSTRAINT refused CHECK (false) NOT VALID`)
				defer execute(t, db, `ALTER TABLE once_outbox DROP CONSTRAINT refused`)
				if err := place(t.Context(), Order{ID: "19", Total: 1}); err == nil {
					t.Fatal("place returned no error: the event cannot be stored")
				}
				orders, events = stored(t, db)
				if orders != 2 || events != 2 {
					t.Fatalf("orders and events are %d and %d, want 2 and 2", orders, events)
				}
			})
		})
	}
}
