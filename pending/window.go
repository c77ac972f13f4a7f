package pending

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
)

const (
	// page is the length of a page if Filter.Limit is 0.
	page = 100

	// few is the maximum number of rows that a call finds with an index. If the index
	// contains more matching rows, the call reads the outbox in the order of the positions
	// instead. It then soon finds enough matching rows.
	few = 5_000
)

// window is the part of the outbox that one call reads.
type window struct {
	from string // FROM and WHERE clauses of a query for the matching rows, with the alias o
	args []any
	next int64 // last position of the window, or 0 if no rows follow
}

// window returns the part of the outbox in which a call looks for the rows that
// match f.
func (m *Messages) window(ctx context.Context, tx *sql.Tx, f Filter) (window, error) {
	var err error
	if f.IDs == nil {
		if f.IDs, err = m.indexed(ctx, tx, f.State); err != nil {
			return window{}, err
		}
	}
	c := &operate.Conditions{}
	from := `FROM {outbox} AS o `
	var next int64
	if f.IDs == nil {
		var err error
		if next, err = outboxrow.Window(ctx, tx, m.dialect, f.AfterID); err != nil {
			return window{}, err
		}
		if next > 0 {
			c.Add(`o.position <= %s`, next)
		}
	}
	m.conditions(c, f)
	return window{from + c.Where(), c.Args, next}, nil
}

// indexed finds rows with an index, and returns their positions. These rows include all
// messages in the given state, and may include messages in other states. It returns nil
// if no index helps, or if an index finds too many rows.
func (m *Messages) indexed(ctx context.Context, tx *sql.Tx, state State) ([]int64, error) {
	var where string
	switch state {
	case BackingOff:
		where = `failing_since IS NOT NULL ORDER BY failing_since`
	case Delayed:
		where = `due_at > {now} ORDER BY due_at`
	default:
		return nil, nil
	}
	positions := []int64{}
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var position int64
		err := scan(&position)
		positions = append(positions, position)
		return err
	}, m.dialect.SQL(`SELECT position FROM {outbox} WHERE `+where+` LIMIT $1`), few+1)
	if err != nil || len(positions) > few {
		return nil, err
	}
	return positions, nil
}

// rows calls the function scan for each matching row of the window. The parameter rest
// is the end of the query, after the conditions.
func (m *Messages) rows(
	ctx context.Context, tx *sql.Tx, w window, columns, rest string, scan func(scan func(dest ...any) error) error,
) error {
	return dialect.EachRow(ctx, tx, scan, m.dialect.SQL(`SELECT `+columns+` `+w.from+` `+rest), w.args...)
}

func limit(n int) string { return fmt.Sprintf(`ORDER BY o.position LIMIT %d`, n) }
