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

// fit returns how many of the given number of rows should be claimed. If the buffer is
// full, it returns 0. Otherwise it returns at least 1, so that a message larger than
// the buffer is also claimed.
func (b *buffer) fit(rows int) int {
	switch free := b.free(); {
	case free <= 0:
		return 0
	case b.rowSize > 0:
		return max(1, min(rows, free/b.rowSize))
	}
	return rows
}

// observe updates the estimate. After a large row, the estimate decreases only
// gradually, because the next rows are often as large.
func (b *buffer) observe(rows []parked.Claimed) {
	b.rowSize /= 2
	for _, c := range rows {
		b.rowSize = max(b.rowSize, c.Size)
	}
}

// tooLarge reports whether a claim failed because its rows are too large. If so, it
// also stores their size, so that fewer rows are claimed the next time.
func (b *buffer) tooLarge(err error) bool {
	large, ok := errors.AsType[*parked.LargeError](err)
	if ok {
		b.rowSize = large.Size
	}
	return ok
}
