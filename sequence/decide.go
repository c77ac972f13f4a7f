package sequence

import "time"

// last is the version that was applied last, if one was.
type last struct {
	version int64
	known   bool
}

// Where a version stands after the last one.
const (
	stale = iota
	next
	early
)

// place says where a version stands.
func (c Config) place(l last, version int64) int {
	switch {
	case l.known && version <= l.version:
		return stale
	case c.Policy == IgnoreOlder, c.First == AnyFirst && !l.known:
		return next
	case version == c.before(l)+1:
		return next
	}
	return early
}

// first is the version that aggregates begin with.
func (c Config) first() int64 {
	if c.First == FromOne {
		return 1
	}
	return 0
}

// before is the version before the one that is to come.
func (c Config) before(l last) int64 {
	if l.known {
		return l.version
	}
	return c.first() - 1
}

// mostWindows bounds how long a message is held for lower ones that are held
// themselves.
const mostWindows = 4

const (
	firstLook = 100 * time.Millisecond
	lastLook  = 5 * time.Second
)

// lookAgain says when to look again at a message that is early: after as long as
// it has waited, but not later than the end of the window. Behind that it waits
// for a lower one, whose window ends soon.
func (c Config) lookAgain(waited time.Duration) time.Duration {
	if left := c.Window - waited; left > 0 {
		return min(max(waited, firstLook), left)
	}
	return min(max(waited/8, firstLook), lastLook)
}
