package outbox

import (
	"context"
	"database/sql"
	"errors"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Messages gives access to the messages in an outbox.
type Messages struct {
	db    rows.DB
	table rows.Ordered
}

// New returns a Messages for the outbox in db. If config is invalid, the error names
// each invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config operate.Config) (*Messages, error) {
	d, _, err := rows.Configure("outbox", db, config)
	if err != nil {
		return nil, err
	}
	label := func(key string) string { return outboxrow.MetadataField(d.Dialect, key) }
	return &Messages{d, rows.Ordered{
		DB: d, Name: `{outbox}`, Alias: "o", Key: "position",
		Table: rows.Table{
			Rows: "messages of the outbox", ID: "o.position", IDs: `o.position {among %s bigint}`, Ordered: true,
			Columns: []rows.Column{
				{Field: "MessageID", SQL: "o.message_id"},
				{Field: "Topic", SQL: "o.topic"},
				{Field: "OrderingKey", SQL: "o.ordering_key"},
				{Field: "Tenant", SQL: label(meta.TenantID)},
				{Field: "AggregateType", SQL: label(meta.AggregateType)},
				{Field: "AggregateID", SQL: label(meta.AggregateID)},
				{Field: "EventType", SQL: label(meta.EventType)},
				{Field: "State", SQL: outboxrow.State},
			},
			Times:  map[string]string{"Created": "o.created_at"},
			States: []string{Due, BackingOff, Delayed, Blocked},
		},
		Next: func(ctx context.Context, tx *sql.Tx, after int64) (int64, error) {
			return outboxrow.Window(ctx, tx, d.Dialect, after)
		},
		Indexed: func(f operate.Filter) (where []string, args []any) {
			switch f.State {
			case BackingOff:
				return []string{`failing_since IS NOT NULL ORDER BY failing_since`}, nil
			case Delayed:
				return []string{`due_at > {now} ORDER BY due_at`}, nil
			}
			return nil, nil
		},
	}}, nil
}

var (
	// ErrNotPaused means that the topic or the tenant is not paused.
	ErrNotPaused = errors.New("not paused")

	// ErrMaybeSent means that a cancelled message may have become due during a slow commit, and may
	// have been sent.
	ErrMaybeSent = errors.New("the commit took too long, the cancelled messages may have been sent as well")
)
