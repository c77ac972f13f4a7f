package deadletter

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/internal/operate"
)

// Discard deletes letters for good, in one transaction. If one of them does not exist
// ([ErrNotFound]), it deletes none. The messages that wait behind a deleted letter are
// then sent. Act.Why is required.
func (l *Letters) Discard(ctx context.Context, act Act, ids ...int64) error {
	err := act.ValidateLoss()
	if err == nil {
		err = l.table.changeIDs(ctx, ids, l.discard(act))
	}
	if err != nil {
		return fmt.Errorf("deadletter: discard: %w", err)
	}
	return nil
}

// DiscardMatching deletes the letters that match f for good, as [Letters.Discard] does,
// and returns the number of deleted letters. It uses several transactions. When ctx
// ends, it stops after a batch. With an error, it also returns the number of letters
// that it has deleted. This number does not include the letters of a commit with an
// unknown outcome.
func (l *Letters) DiscardMatching(ctx context.Context, act Act, f Filter) (discarded int, err error) {
	var report Report
	if err = act.ValidateLoss(); err == nil {
		report, err = l.table.changeMatching(ctx, f, l.discard(act))
	}
	if err != nil {
		return report.Replayed, fmt.Errorf("deadletter: discard: %w", err)
	}
	return report.Replayed, nil
}

func (l *Letters) discard(act Act) operation {
	return operation{act: act, name: "discard", unsure: "1 = 0", unfit: "1 = 0", do: l.deleteLetters}
}

func (l *Letters) deleteLetters(ctx context.Context, tx *sql.Tx, letters []row) error {
	var (
		positions []int64
		keys      []string
	)
	for _, letter := range letters {
		if letter.key != "" {
			positions, keys = append(positions, letter.position), append(keys, letter.key)
		}
	}
	if err := operate.Unblock(ctx, tx, l.table.dialect, positions, keys); err != nil {
		return err
	}
	return l.table.remove(ctx, tx, letters)
}
