package sequence

import "time"

// last is the version that was applied last, if one was. All versions from
// completeFrom to it have been applied, so only these may be ignored.
type last struct {
	version, completeFrom int64
	known                 bool
}

// Where a version stands after the last one.
const (
	stale = iota
	next
	early
	late // a higher one was applied without it
)

// place returns where a version stands.
func (c Config) place(l last, version int64) int {
	switch {
	case l.known && version <= l.version:
		if c.Policy == HoldForGap && version < l.completeFrom {
			return late
		}
		return stale
	case c.Policy == IgnoreOlder, version == c.before(l)+1:
		return next
	}
	return early
}

// with returns what is known after version has been applied. filled says that
// those between the last one and it count as applied.
func (c Config) with(l last, version int64, filled bool) last {
	switch {
	case l.known && version <= l.version: // a late one
		if version == l.completeFrom-1 {
			l.completeFrom = version
		}
		return l
	case !l.known && filled:
		return last{version, c.first(), true}
	case !l.known || version != l.version+1 && !filled:
		return last{version, version, true}
	}
	return last{version, l.completeFrom, true}
}

// first is the version that aggregates begin with.
func (c Config) first() int64 {
	if c.First == FromZero || c.Policy == IgnoreOlder {
		return 0
	}
	return 1
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
