package meta

import "strings"

// ShowBlanks returns a name in which each space at the beginning and at the end is
// replaced by "␣". Otherwise the names "A1" and "A1 " would look the same on a page or
// in a terminal.
func ShowBlanks(name string) string {
	inner := strings.Trim(name, " ")
	if len(inner) == len(name) {
		return name
	}
	if inner == "" {
		return strings.Repeat("␣", len(name))
	}
	before := strings.Index(name, inner)
	after := len(name) - before - len(inner)
	return strings.Repeat("␣", before) + inner + strings.Repeat("␣", after)
}
