package meta

import "time"

// stampLayout is RFC 3339 in UTC with milliseconds.
const stampLayout = "2006-01-02T15:04:05.000Z"

// Stamp returns the form of a time in [CreatedAt] and [PublishedAt].
func Stamp(at time.Time) string { return at.UTC().Format(stampLayout) }

// Stamped returns the time of a stamp. It returns false if the text is not a stamp of
// the years 1970 to 9999. It allocates nothing if the text is a stamp.
func Stamped(text string) (time.Time, bool) {
	if len(text) != len(stampLayout) {
		return time.Time{}, false
	}
	at, err := time.Parse(stampLayout, text)
	return at, err == nil && at.Unix() >= 0
}

// isStamp reports whether the forwarder sets the key, so that no outbox stores it.
func isStamp(key string) bool { return key == CreatedAt || key == PublishedAt }
