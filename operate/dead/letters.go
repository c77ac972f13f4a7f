package dead

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Message contains the fields that dead letters and sent messages have in common.
type Message struct {
	// ID is the ID of the row. Pass it to Get, Replay and Discard. Position is the position
	// of the message in the outbox.
	ID, Position int64

	MessageID, Topic, OrderingKey string

	// Payload is the body, byte for byte, which List does not set. Size is its length in bytes.
	Payload []byte
	Size    int

	// Metadata is nil if package outbox did not write it, or with Config.WithoutContent.
	Metadata message.Metadata

	// CreatedAt is the time at which the message was written to the outbox.
	CreatedAt time.Time
}

// scanMessage reads the columns of list, and into dest those of only one of the two tables.
func scanMessage(scan func(dest ...any) error, dest ...any) (Message, error) {
	var (
		m        Message
		metadata []byte
		created  int64
	)
	err := scan(append([]any{
		&m.ID, &m.Position, &m.MessageID, &m.Topic, &m.OrderingKey, &m.Size, &metadata, &created,
	}, dest...)...)
	if err != nil {
		return Message{}, err
	}
	if m.Metadata, err = outboxrow.DecodeMetadata(metadata); err != nil {
		m.Metadata = nil // a damaged row is returned without its metadata
	}
	m.CreatedAt = rows.Millis(created)
	return m, nil
}

// Letter is a dead letter: usually a message that the forwarder gave up on, because the broker did
// not accept it.
type Letter struct {
	Message

	// Attempts is the number of failed attempts to send the message.
	Attempts int

	// Reason is one of the Reason constants. Error is the last error of the publisher.
	Reason, Error string

	// Unknown reports whether the message may have been sent although no confirm arrived.
	Unknown bool

	// BlocksKey: messages of the ordering key wait for this letter, see forwarder.BlockKey.
	BlocksKey bool

	// LastFailedAt is when the message became a dead letter.
	LastFailedAt time.Time
}

// Letters are the dead letters of an outbox.
type Letters struct {
	table *table
}

// New returns the dead letters in db. If config is invalid, the error names each
// invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config operate.Config) (*Letters, error) {
	t, err := deadTable(db, config)
	if err != nil {
		return nil, err
	}
	return &Letters{t}, nil
}

// List returns a page of the letters that match, without their payloads. For a single condition, an
// index finds them. With several, List looks at no more than 10,000 letters that match the rarest
// one, and Page.Next says where the search continues. FailedAfter and FailedBefore count as a
// second condition if they match more than 5,000 letters.
func (l *Letters) List(ctx context.Context, f operate.Filter) (operate.Page[Letter], error) {
	p, err := l.list(ctx, f, false)
	if err != nil {
		return operate.Page[Letter]{}, fmt.Errorf("dead: list: %w", err)
	}
	return p, nil
}

// Get returns one letter with its payload, or [operate.ErrNotFound].
func (l *Letters) Get(ctx context.Context, id int64) (Letter, error) {
	p, err := l.list(ctx, operate.Filter{IDs: []int64{id}}, false)
	if err == nil && len(p.Rows) == 0 {
		err = l.table.notFound(id)
	}
	if err == nil {
		p.Rows[0].Payload, err = l.table.payload(ctx, id)
	}
	if err != nil {
		return Letter{}, fmt.Errorf("dead: get: %w", err)
	}
	return p.Rows[0], nil
}

// Count counts the letters that match, at most 50,000 in one call, and Filter.Limit if it is set.
// It looks at no more letters than List. Count.Next says where the next call continues.
func (l *Letters) Count(ctx context.Context, f operate.Filter) (operate.Count, error) {
	n, err := l.table.Count(ctx, f)
	if err != nil {
		return operate.Count{}, fmt.Errorf("dead: count: %w", err)
	}
	return n, nil
}

func (l *Letters) list(ctx context.Context, f operate.Filter, everywhere bool) (operate.Page[Letter], error) {
	columns := `attempts, ` + l.table.Content(`last_error`, `''`) + `, reason, unknown, {millis died_at},
		EXISTS (SELECT 1 FROM {blocked_keys} AS b
		        WHERE b.ordering_key = a.ordering_key AND b.position = a.position AND b.reason = '` + outboxrow.BlockedDead + `')`
	return list(ctx, l.table, f, everywhere, columns, []string{"last_error"}, func(scan func(dest ...any) error) (Letter, int64, error) {
		var (
			letter Letter
			died   int64
			err    error
		)
		letter.Message, err = scanMessage(scan, &letter.Attempts, &letter.Error, &letter.Reason, &letter.Unknown, &died, &letter.BlocksKey)
		letter.LastFailedAt = rows.Millis(died)
		return letter, letter.ID, err
	})
}

// Groups returns the letters that match f by their cause, in ascending order of Fingerprint.
// Filter.Limit is the maximum number of groups.
//
// Groups reads only the latest 10,000 letters that match, or with several conditions that match the
// rarest one, so that it is quick with a million. If more may match, GroupPage.Partial and
// Group.More are set, and groups with only older letters are missing. [Letters.DryRun] counts all
// letters.
func (l *Letters) Groups(ctx context.Context, f operate.Filter) (operate.GroupPage, error) {
	p, err := l.table.Groups(ctx, f, "last_error", func(tx *sql.Tx, w rows.Window) ([]rows.Group, error) { return l.latestGroups(ctx, tx, w) })
	if err != nil {
		return operate.GroupPage{}, fmt.Errorf("dead: groups: %w", err)
	}
	return p, nil
}

func (l *Letters) latestGroups(ctx context.Context, tx *sql.Tx, w rows.Window) (groups []rows.Group, err error) {
	query := `SELECT fingerprint, reason, topic, COUNT(*), {millis MIN(died_at)}, {millis MAX(died_at)}, MAX(id)
		FROM (SELECT fingerprint, reason, topic, died_at, id FROM ` + w.From() + `
		      ORDER BY id DESC LIMIT ` + strconv.Itoa(rows.GroupedRows) + `) AS latest
		GROUP BY fingerprint, reason, topic ORDER BY fingerprint, topic`
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			g           = rows.Group{Group: operate.Group{Topics: make([]string, 1)}}
			first, last int64
		)
		err := scan(&g.Fingerprint, &g.Reason, &g.Topics[0], &g.Count, &first, &last, &g.LastID)
		g.FirstFailedAt, g.LastFailedAt = rows.Millis(first), rows.Millis(last)
		groups = rows.AddGroup(groups, g)
		return err
	}, l.table.SQL(query), w.Args...)
	return groups, err
}
