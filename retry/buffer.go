package retry

import (
	"errors"

	"github.com/watermill-once/once/internal/parked"
)

// buffer counts the bytes of claimed messages in memory.
type buffer struct {
	limit   int
	bytes   int
	rowSize int // estimate for the next row: the largest recent size
}

func (b *buffer) free() int { return b.limit - b.bytes }

// fit returns how many of the given number of rows to claim. It returns 0 if the
// buffer is full, and otherwise at least 1, so that a message larger than the
// buffer is also claimed.
func (b *buffer) fit(rows int) int {
	switch free := b.free(); {
	case free <= 0:
		return 0
	case b.rowSize > 0:
		return max(1, min(rows, free/b.rowSize))
	}
	return rows
}

// observe updates the estimate. It forgets a large row gradually, because the
// next rows are often as large.
func (b *buffer) observe(rows []parked.Claimed) {
	b.rowSize /= 2
	for _, c := range rows {
		b.rowSize = max(b.rowSize, c.Size)
	}
}

// tooLarge reports whether a claim failed because its rows are too large, and
// notes their size so that the next claim asks for fewer rows.
func (b *buffer) tooLarge(err error) bool {
	large, ok := errors.AsType[*parked.LargeError](err)
	if ok {
		b.rowSize = large.Size
	}
	return ok
}
