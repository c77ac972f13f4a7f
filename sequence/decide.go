package sequence

import (
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
)

// last: all versions of an aggregate from completeFrom to version were applied.
type last struct {
	version, completeFrom int64
	known                 bool // false if no version was applied
}

// Results of Config.place: how a version relates to the last applied one.
const (
	stale = iota // the version was applied before, or a higher version was applied without it
	next
	early // versions before this version are missing
	late  // a higher version was applied without this version, and Config.keepsLate returns true
)

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

// with adds an applied version to l. If filled is true, those in between count, too.
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

// Without an applied version, before is the number before the first one.
func (c Config) before(l last) int64 {
	if l.known {
		return l.version
	}
	return c.first() - 1
}

// maxWindows limits how long a message is held while lower versions are held, too.
const maxWindows = 4

const (
	minRecheck = 100 * time.Millisecond
	maxRecheck = 5 * time.Second
)

// recheckAfter returns when to check an early message again: after as long as it has waited, but no
// later than the window, and once in its middle, so that logMissingFirst can log before it ends.
// Then it waits only for a lower version whose window ends soon.
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

type aggregate struct {
	kind, id string
	version  int64
}

// ok is false if msg has no aggregate.
func (c Config) aggregateOf(msg *message.Message) (a aggregate, ok bool, err error) {
	a.kind, a.id = msg.Metadata[meta.AggregateType], msg.Metadata[meta.AggregateID]
	version := msg.Metadata[meta.AggregateVersion]
	if a.kind == "" || a.id == "" || version == "" {
		return a, false, nil
	}
	for _, key := range []string{meta.AggregateType, meta.AggregateID} {
		if parkedrows.CheckName(msg.Metadata[key]) != nil {
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
