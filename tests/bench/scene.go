package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/schema"
)

// scene is a new database and a new queue, for one measurement.
type scene struct {
	db    *database // with the tables of this module
	queue *queue
}

func (b *bench) newScene(ctx context.Context, kind string) (*scene, error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return nil, err
	}
	if err := schema.Up(ctx, db.DB, schema.Config{}); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	q, err := newQueue(b.amqpURL, kind)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &scene{db: db, queue: q}, nil
}

func (s *scene) Close() error { return errors.Join(s.queue.Close(), s.db.Close()) }

func closing(c io.Closer, err *error) {
	if failed := c.Close(); failed != nil {
		*err = errors.Join(*err, failed)
	}
}

// connections is the size of each pool. A pool keeps all its connections open.
const connections = 16

func open(dsn string) (*sql.DB, error) {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return nil, err
	}
	return sized(db), nil
}

// openLazily returns a pool that uses lazytx: BEGIN is sent with the first statement.
func openLazily(dsn string) (*sql.DB, error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sized(sql.OpenDB(lazytx.Connector(connector))), nil
}

func openStd(dsn string) (plain, lazy *sql.DB, err error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	return sized(stdlib.OpenDB(*config)), sized(sql.OpenDB(lazytx.Connector(stdlib.GetConnector(*config)))), nil
}

func sized(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

// database is a new database for one measurement.
type database struct {
	*sql.DB

	lazy    *sql.DB // a second pool, see openLazily
	std     *sql.DB // a third pool, with pgx's driver
	lazyStd *sql.DB // a fourth pool, with pgx's driver and lazytx
	dsn     string
	name    string
	admin   *sql.DB
}

func newDatabase(ctx context.Context, dsn string) (*database, error) {
	address, err := url.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("PG_DSN is no URL: %w", err)
	}
	admin, err := open(dsn)
	if err != nil {
		return nil, err
	}
	d := &database{name: "once_bench_" + uuid.NewString(), admin: admin}
	if _, err := admin.ExecContext(context.WithoutCancel(ctx), `CREATE DATABASE "`+d.name+`" TEMPLATE template0`); err != nil {
		return nil, errors.Join(err, admin.Close())
	}
	address.Path = "/" + d.name
	d.dsn = address.String()
	if d.DB, err = open(d.dsn); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.lazy, err = openLazily(d.dsn); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.std, d.lazyStd, err = openStd(d.dsn); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *database) Close() error {
	defer d.admin.Close()
	for _, pool := range []*sql.DB{d.DB, d.lazy, d.std, d.lazyStd} {
		if pool != nil {
			_ = pool.Close()
		}
	}
	if _, err := d.admin.Exec(`DROP DATABASE "` + d.name + `" WITH (FORCE)`); err != nil {
		return fmt.Errorf("database %s is left: %w", d.name, err)
	}
	return nil
}

// prepare publishes one message through the outbox, and stores a copy of its row in the
// table sample. The method add makes copies of this row.
func (s *scene) prepare(ctx context.Context) error {
	err := outbox.InTx(ctx, s.db.DB, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(s.queue.name, newMessage())
	})
	if err != nil {
		return err
	}
	return s.exec(ctx,
		`CREATE TABLE sample AS SELECT topic, payload, metadata FROM once_outbox`,
		`DELETE FROM once_outbox`)
}

// add inserts copies of the row in the table sample, in one transaction. If
// keys is above 0, the copies get this number of ordering keys in rotation.
func (s *scene) add(ctx context.Context, messages, keys int) error {
	_, err := s.db.ExecContext(ctx, `
		INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata)
		SELECT gen_random_uuid()::text, topic, 'key-' || n % $2, CASE WHEN $2 > 0 THEN n % $2 ELSE n END % 64, payload,
		       CASE WHEN $2 > 0 THEN (metadata::jsonb || jsonb_build_object('`+outbox.OrderingKey+`', 'key-' || n % $2))::json ELSE metadata END
		FROM sample, generate_series(1, $1::bigint) AS n`, messages, sql.NullInt64{Int64: int64(keys), Valid: keys > 0})
	return err
}

func (s *scene) fill(ctx context.Context, messages, keys int) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.add(ctx, messages, keys); err != nil {
		return err
	}
	return s.settle(ctx)
}

func (s *scene) fillFor(ctx context.Context, tenant string, messages, keys int) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	_, err := s.db.ExecContext(ctx, `
		UPDATE sample SET metadata = (metadata::jsonb || jsonb_build_object('`+outbox.TenantID+`', $1::text))::json`, tenant)
	if err != nil {
		return err
	}
	if err := s.add(ctx, messages, keys); err != nil {
		return err
	}
	return s.settle(ctx)
}

// settle vacuums the outbox and writes a checkpoint, so that earlier writes do not slow
// down the measurement.
func (s *scene) settle(ctx context.Context) error {
	return s.exec(ctx, `VACUUM ANALYZE once_outbox`, `CHECKPOINT`)
}

func (s *scene) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// Every message has a body of bodySize bytes, and headerCount metadata fields.
const (
	bodySize    = 490
	headerCount = 6
)

var body = append(append([]byte(`{"text":"`), bytes.Repeat([]byte("x"), bodySize-11)...), `"}`...)

func newMessage() *message.Message {
	msg := message.NewMessage(uuid.Must(uuid.NewV7()).String(), body)
	for n := range headerCount {
		msg.Metadata[fmt.Sprintf("header-%d", n)] = "a value of some length"
	}
	return msg
}

func newMessages(count int) []*message.Message {
	msgs := make([]*message.Message, count)
	for i := range msgs {
		msgs[i] = newMessage()
	}
	return msgs
}
