package examplestx

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/jmoiron/sqlx/reflectx"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// Payment is a row of the table payments.
type Payment struct {
	OrderID string `db:"order_id"`
	Cents   int64  `db:"cents"`
}

// plain uses database/sql only.
func plain(ctx context.Context, tx *sql.Tx, p Payment) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id, cents) VALUES ($1, $2)`, p.OrderID, p.Cents)
	return err
}

// withSqlx wraps the transaction in a sqlx.Tx, whose methods Get and Select read rows
// into structs. sqlx does not know the placeholders of the driver, so the example
// passes their kind to sqlx.BindNamed.
func withSqlx(ctx context.Context, tx *sql.Tx, p Payment) error {
	x := &sqlx.Tx{Tx: tx, Mapper: reflectx.NewMapper("db")}
	query, args, err := sqlx.BindNamed(sqlx.DOLLAR, `INSERT INTO payments (order_id, cents) VALUES (:order_id, :cents)`, p)
	if err != nil {
		return err
	}
	if _, err := x.ExecContext(ctx, query, args...); err != nil {
		return err
	}
	var written Payment
	return x.GetContext(ctx, &written, `SELECT order_id, cents FROM payments WHERE order_id = $1`, p.OrderID)
}

// withSqlc calls code that sqlc generates. Its New accepts a *sql.Tx as a DBTX.
func withSqlc(ctx context.Context, tx *sql.Tx, p Payment) error {
	return New(tx).CapturePayment(ctx, CapturePaymentParams(p))
}

// withGorm opens GORM on the transaction. GORM begins no second transaction.
func withGorm(ctx context.Context, tx *sql.Tx, p Payment) error {
	db, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: tx}), &gorm.Config{SkipDefaultTransaction: true})
	if err != nil {
		return err
	}
	return db.WithContext(ctx).Create(&p).Error
}

// withEnt creates a driver for ent on the transaction. Create and Update of a
// generated client, ent.NewClient(ent.Driver(driver)), then run in the
// transaction.
func withEnt(ctx context.Context, tx *sql.Tx, p Payment) error {
	driver := entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})
	query, args := entsql.Dialect(dialect.Postgres).
		Insert("payments").Columns("order_id", "cents").Values(p.OrderID, p.Cents).Query()
	return driver.Exec(ctx, query, args, nil)
}

var errLater = errors.New("the handler fails after it has written")

func TestHandlersWithQueryBuildersUseTheirTransaction(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, tx *sql.Tx, p Payment) error{
		"plain": plain, "sqlx": withSqlx, "sqlc": withSqlc, "gorm": withGorm, "ent": withEnt,
	} {
		t.Run(name, func(t *testing.T) {
			db := kit.Postgres(t).DB
			err := schema.Up(t.Context(), db, schema.Config{})
			if err == nil {
				_, err = db.ExecContext(t.Context(), `CREATE TABLE payments (order_id text NOT NULL, cents bigint NOT NULL)`)
			}
			kit.OK(t, err)
			inbox, err := dedup.New(db, dedup.Config{Consumer: "payments"})
			kit.OK(t, err)
			for id, fails := range map[string]error{"fine": nil, "fails": errLater} {
				for range 2 {
					_, err := inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
						tx, ok := dedup.TxFromContext(msg.Context())
						if !ok {
							t.Fatal("no transaction")
						}
						return nil, errors.Join(write(msg.Context(), tx, Payment{OrderID: msg.UUID, Cents: 1700}), fails)
					})(message.NewMessage(id, nil))
					if !errors.Is(err, fails) {
						t.Fatalf("%s: %v", id, err)
					}
				}
			}
			var id string
			var rows, cents int64
			err = db.QueryRowContext(t.Context(), `SELECT COUNT(*), MIN(order_id), SUM(cents) FROM payments`).Scan(&rows, &id, &cents)
			if err != nil || rows != 1 || id != "fine" || cents != 1700 {
				t.Errorf("%d payments, of %s, of %d cents, %v", rows, id, cents, err)
			}
		})
	}
}
