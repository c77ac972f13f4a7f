package meta

import "time"

// stampLayout is RFC 3339 in UTC with milliseconds.
const stampLayout = "2006-01-02T15:04:05.000Z"

// Stamp formats a time for [CreatedAt] and [PublishedAt].
func Stamp(at time.Time) string { return at.UTC().Format(stampLayout) }

// Stamped parses a stamp. It returns false if text is not a stamp of the years 1970 to
// 9999. For a valid stamp, it allocates no memory.
func Stamped(text string) (time.Time, bool) {
	if len(text) != len(stampLayout) || text[len(text)-1] != 'Z' {
		return time.Time{}, false
	}
	// Package time parses RFC3339Nano several times faster than other layouts. A text of
	// this length has exactly three digits after the decimal point of the second.
	at, err := time.Parse(time.RFC3339Nano, text)
	return at, err == nil && at.Unix() >= 0
}

// isStamp reports whether the forwarder sets the key. No outbox stores such a key.
func isStamp(key string) bool { return key == CreatedAt || key == PublishedAt }
