package deadletter

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/slot"
)

// copyToOutbox inserts copies of rows into the outbox, in their order, and returns the
// positions of the copies. The parameter unknown is an SQL expression that is true if
// the message may have been sent before.
func (t table) copyToOutbox(ctx context.Context, tx *sql.Tx, unknown string, rows []row) ([]int64, error) {
	ids, slots := make([]int64, len(rows)), make([]int64, len(rows))
	for i, r := range rows {
		ids[i], slots[i] = r.id, int64(slot.Of(r.messageID, r.key))
	}
	query := `INSERT INTO {outbox} (message_id, topic, ordering_key, slot, payload, metadata, unknown)
		SELECT a.message_id, a.topic, a.ordering_key, c.slot, a.payload, a.metadata, ` + unknown + `
		FROM ` + t.name + ` AS a JOIN ` + t.dialect.Columns("id bigint", "slot smallint") + ` ON c.id = a.id
		ORDER BY a.id
		RETURNING position`
	var positions []int64
	err := t.query(ctx, tx, query, &operate.Conditions{Args: []any{t.dialect.List(ids), t.dialect.List(slots)}}, func(rows *sql.Rows) error {
		var position int64
		err := rows.Scan(&position)
		positions = append(positions, position)
		return err
	})
	if err == nil && len(positions) != len(rows) {
		err = fmt.Errorf("%d rows were inserted, not %d", len(positions), len(rows))
	}
	slices.Sort(positions) // the database assigns positions in the order of ids, but returns them in any order
	return positions, err
}

// remove deletes rows from the table.
func (t table) remove(ctx context.Context, tx *sql.Tx, rows []row) error {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	_, err := tx.ExecContext(ctx, t.dialect.SQL(`DELETE FROM `+t.name+` WHERE id IN {list $1 bigint}`), t.dialect.List(ids))
	return err
}
