package sequence

import (
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
)

// last describes which versions of an aggregate were applied: all versions from
// completeFrom to version. It is not certain that a lower version was applied.
type last struct {
	version, completeFrom int64
	known                 bool // false if no version was applied
}

// Results of Config.place. They say how a version relates to the version that was
// applied last.
const (
	stale = iota // the version was applied before, or a higher version was applied without it
	next
	early // versions before this version are missing
	late  // a higher version was applied without this version, and Config.keepsLate returns true
)

// place reports how version relates to l, the version that was applied last. It returns
// stale, next, early or late.
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

// with adds an applied version to l, and returns the result. If filled is
// true, the versions between l.version and this version also count as applied.
func (c Config) with(l last, version int64, filled bool) last {
	switch {
	case l.known && version <= l.version: // the applied version is late
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

func (c Config) first() int64 {
	if c.FromZero || c.Policy == IgnoreOlder {
		return 0
	}
	return 1
}

// before returns the last applied version. If no version was applied, it returns the
// number before the first version.
func (c Config) before(l last) int64 {
	if l.known {
		return l.version
	}
	return c.first() - 1
}

// maxWindows is the maximum number of windows for which a message is held. A message is
// held for more than one window only while lower versions are held, too.
const maxWindows = 4

const (
	minRecheck = 100 * time.Millisecond
	maxRecheck = 5 * time.Second
)

// recheckAfter returns how long to wait before an early message is checked again. The
// wait is as long as the message has waited so far, but ends no later than the window.
// One check is in the middle of the window, so that logMissingFirst can log a line
// before the window ends. After the end of the window, the message waits only for a
// lower version whose window ends soon.
func (c Config) recheckAfter(waited time.Duration) time.Duration {
	if left := c.Window/2 - waited; left > 0 {
		return min(max(waited, minRecheck), left)
	}
	if left := c.Window - waited; left > 0 {
		return min(max(waited, minRecheck), left)
	}
	return min(max(waited/8, minRecheck), maxRecheck)
}

const maxName = 255 // in bytes; parkedrows.CheckName has the same limit

// aggregate contains the type, the id and the version of an aggregate, as they are in
// the metadata of a message.
type aggregate struct {
	kind, id string
	version  int64
}

// aggregateOf returns the aggregate in the metadata of msg. The result ok is false if
// the metadata contains no aggregate.
func (c Config) aggregateOf(msg *message.Message) (a aggregate, ok bool, err error) {
	a.kind, a.id = msg.Metadata[meta.AggregateType], msg.Metadata[meta.AggregateID]
	version := msg.Metadata[meta.AggregateVersion]
	if a.kind == "" || a.id == "" || version == "" {
		return a, false, nil
	}
	for key, text := range map[string]string{meta.AggregateType: a.kind, meta.AggregateID: a.id} {
		if parkedrows.CheckName(text) != nil {
			return a, false, fmt.Errorf("sequence: %w: %s is longer than %d bytes, or not valid text", ErrInvalidVersion, key, maxName)
		}
	}
	a.version, err = strconv.ParseInt(version, 10, 64)
	if err != nil || a.version < c.first() {
		return a, false, fmt.Errorf("sequence: %w: %s is %.40q, not a whole number of at least %d, where versions begin (Config.FromZero)",
			ErrInvalidVersion, meta.AggregateVersion, version, c.first())
	}
	return a, true, nil
}

func (a aggregate) sequence() string { return strconv.Itoa(len(a.kind)) + ":" + a.kind + a.id }
