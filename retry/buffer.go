package retry

import (
	"errors"

	"github.com/watermill-once/once/internal/parked"
)

// buffer is how much of parked messages is in memory.
type buffer struct {
	most    int
	bytes   int // of what is in hand
	rowSize int // that is reckoned with: of the largest row lately
}

func (b *buffer) free() int { return b.most - b.bytes }

// fit returns how many of so many rows to claim: 0 if there is no room, and
// else at least one, however large it may be.
func (b *buffer) fit(rows int) int {
	switch free := b.free(); {
	case free <= 0:
		return 0
	case b.rowSize > 0:
		return max(1, min(rows, free/b.rowSize))
	}
	return rows
}

// claimed notes how large rows are. One that was large is forgotten little by
// little, as what follows it may be of its kind.
func (b *buffer) claimed(rows []parked.Claimed) {
	b.rowSize /= 2
	for _, c := range rows {
		b.rowSize = max(b.rowSize, c.Size)
	}
}

// refused says whether a claim is to be tried for fewer rows.
func (b *buffer) refused(err error) bool {
	large, ok := errors.AsType[*parked.LargeError](err)
	if ok {
		b.rowSize = large.Size
	}
	return ok
}
