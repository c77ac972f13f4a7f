package sequence

import "time"

// last is the last applied version of an aggregate. All versions from completeFrom
// to version have been applied, so only these may be ignored.
type last struct {
	version, completeFrom int64
	known                 bool // false if no version was applied
}

// Places of a version relative to the last applied version.
const (
	stale = iota // applied before, or overtaken
	next
	early // versions before it are missing
	late  // a higher version was applied without it
)

// place returns the place of a version.
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

// with returns the new last version after version has been applied. filled means
// that the versions between l and version count as applied.
func (c Config) with(l last, version int64, filled bool) last {
	switch {
	case l.known && version <= l.version: // late
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

// first returns the first version of aggregates.
func (c Config) first() int64 {
	if c.First == FromZero || c.Policy == IgnoreOlder {
		return 0
	}
	return 1
}

// before returns the version before the next one.
func (c Config) before(l last) int64 {
	if l.known {
		return l.version
	}
	return c.first() - 1
}

// maxWindows bounds how long a message is held for lower versions that are held
// too, in windows.
const maxWindows = 4

const (
	minRecheck = 100 * time.Millisecond
	maxRecheck = 5 * time.Second
)

// recheckAfter returns when to check an early message again: after as long as it
// has waited so far, but not later than the end of the window. After the window
// the message waits for a lower version whose window ends soon.
func (c Config) recheckAfter(waited time.Duration) time.Duration {
	if left := c.Window - waited; left > 0 {
		return min(max(waited, minRecheck), left)
	}
	return min(max(waited/8, minRecheck), maxRecheck)
}
