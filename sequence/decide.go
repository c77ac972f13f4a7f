package sequence

import "time"

// last describes which versions of an aggregate were applied. All versions from
// completeFrom to version were applied, so only these may be ignored.
type last struct {
	version, completeFrom int64
	known                 bool // false if no version was applied
}

// Possible places of a version relative to the last applied version.
const (
	stale = iota // it was applied before, or a higher version was applied without it
	next
	early // versions before it are missing
	late  // a higher version was applied without it, and Config.keepsLate
)

// place returns the place of a version.
func (c Config) place(l last, version int64) int {
	switch {
	case l.known && version <= l.version:
		if version < l.completeFrom && c.keepsLate() {
			return late
		}
		return stale
	case c.Policy == IgnoreOlder, version == c.before(l)+1:
		return next
	}
	return early
}

// with returns the new value of l after version was applied. filled means that the
// versions between l.version and version count as applied.
func (c Config) with(l last, version int64, filled bool) last {
	switch {
	case l.known && version <= l.version: // version is late
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

// first returns the lowest version that an aggregate can have.
func (c Config) first() int64 {
	if c.First == FromZero || c.Policy == IgnoreOlder {
		return 0
	}
	return 1
}

// before returns the version that comes immediately before the next one to apply.
func (c Config) before(l last) int64 {
	if l.known {
		return l.version
	}
	return c.first() - 1
}

// maxWindows is for how many windows a message may be held while lower versions are
// held, too.
const maxWindows = 4

const (
	minRecheck = 100 * time.Millisecond
	maxRecheck = 5 * time.Second
)

// recheckAfter returns how long to wait before an early message is checked again. It is
// as long as the message has waited so far, but not longer than the rest of the window.
// After the window, the message waits for a lower version whose window ends soon.
func (c Config) recheckAfter(waited time.Duration) time.Duration {
	if left := c.Window - waited; left > 0 {
		return min(max(waited, minRecheck), left)
	}
	return min(max(waited/8, minRecheck), maxRecheck)
}
