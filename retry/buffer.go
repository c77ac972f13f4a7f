package retry

import (
	"errors"

	"github.com/watermill-once/once/internal/parked"
)

// buffer counts the bytes of claimed messages in memory.
type buffer struct {
	limit   int
	bytes   int
	rowSize int // estimated size of the next row: the largest recent size
}

func (b *buffer) free() int { return b.limit - b.bytes }

// fit returns how many rows to claim: the given number, or fewer if they would not fit
// into the buffer. If the buffer is full, it returns 0. Otherwise it returns at least
// 1, so that even a message larger than the buffer is claimed.
func (b *buffer) fit(rows int) int {
	switch free := b.free(); {
	case free <= 0:
		return 0
	case b.rowSize > 0:
		return max(1, min(rows, free/b.rowSize))
	}
	return rows
}

// observe updates the estimated row size. After a large row, the estimate decreases
// slowly, because the next rows are often large, too.
func (b *buffer) observe(rows []parked.Claimed) {
	b.rowSize /= 2
	for _, c := range rows {
		b.rowSize = max(b.rowSize, c.Size)
	}
}

// tooLarge reports whether a claim failed with err because a row was too large. If so,
// it stores the size of the row, and the next claim takes fewer rows.
func (b *buffer) tooLarge(err error) bool {
	large, ok := errors.AsType[*parked.LargeError](err)
	if ok {
		b.rowSize = large.Size
	}
	return ok
}
