package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/schema"
)

// ErrNotFound says that there is no row of that ID.
var ErrNotFound = errors.New("not found")

// Stored is a message in one of the tables beside the outbox.
type Stored struct {
	// ID is that of the row. Position is the one that the message had in the
	// outbox.
	ID, Position int64

	// MessageID, Topic and OrderingKey are the message's; the key is empty if
	// it has none.
	MessageID, Topic, OrderingKey string

	// Payload is the body byte for byte, in what Get returns; lists leave it
	// out. Size is its length in either.
	Payload []byte
	Size    int

	// Metadata is nil if the row's is not what the outbox writes.
	Metadata message.Metadata

	// CreatedAt is when the message came into the outbox.
	CreatedAt time.Time
}

// page is the length of a page that does not say.
const page = 100

// archive is what the tables of dead letters and of sent messages have in
// common.
type archive struct {
	store   *store
	table   string // as a placeholder
	subject string // in audit rows
	dead    bool   // whether it is that of dead letters
	at      string // the column that says when a row came here
}

func newArchive(db *sql.DB, config schema.Config, kind archive) (archive, error) {
	d, err := dialect.New(config)
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return archive{}, fmt.Errorf("forwarder: %w", err)
	}
	kind.store = newStore(db, d)
	return kind, nil
}

// query runs a query with the conditions' parameters and calls scan for each
// row.
func (a archive) query(ctx context.Context, tx *sql.Tx, query string, c *conditions, scan func(rows *sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, a.store.dialect.SQL(query), c.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// matching returns how many rows match and the highest ID among them: what
// comes later does not belong to it any more.
func (a archive) matching(ctx context.Context, f Filter) (n int, last int64, err error) {
	if err := a.validate(f); err != nil {
		return 0, 0, err
	}
	c := a.conditions(f)
	err = a.store.read(ctx, func(tx *sql.Tx) error {
		return a.query(ctx, tx, `SELECT COUNT(*), COALESCE(MAX(id), 0) FROM `+a.table+` `+c.where(), c,
			func(rows *sql.Rows) error { return rows.Scan(&n, &last) })
	})
	return n, last, err
}

const storedColumns = `id, position, message_id, topic, COALESCE(ordering_key, ''), octet_length(payload),
	CAST(metadata AS text), {millis created_at}`

// list calls scan for each row of a page, which has the columns of Stored and
// the table's own.
func (a archive) list(ctx context.Context, f Filter, own string, scan func(rows *sql.Rows) error) error {
	if err := a.validate(f); err != nil {
		return err
	}
	c := a.conditions(f)
	query := `SELECT ` + storedColumns + `, ` + own + ` FROM ` + a.table + ` AS a ` + c.where() +
		` ORDER BY id LIMIT ` + c.arg(cmp.Or(f.Limit, page))
	return a.store.read(ctx, func(tx *sql.Tx) error { return a.query(ctx, tx, query, c, scan) })
}

func scanStored(rows *sql.Rows, own ...any) (Stored, error) {
	var (
		s        Stored
		metadata []byte
		created  int64
	)
	err := rows.Scan(append([]any{
		&s.ID, &s.Position, &s.MessageID, &s.Topic, &s.OrderingKey, &s.Size, &metadata, &created,
	}, own...)...)
	if err != nil {
		return Stored{}, err
	}
	if s.Metadata, err = decode(metadata); err != nil {
		s.Metadata = nil
	}
	s.CreatedAt = time.UnixMilli(created).UTC()
	return s, nil
}

// payload fills in what lists leave out.
func (a archive) payload(ctx context.Context, s *Stored) error {
	return a.store.read(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, a.store.dialect.SQL(`SELECT payload FROM `+a.table+` WHERE id = $1`), s.ID).Scan(&s.Payload)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w: %d", ErrNotFound, s.ID) // it went meanwhile
		}
		if s.Payload == nil {
			s.Payload = []byte{}
		}
		return err
	})
}
