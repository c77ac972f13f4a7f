package meta

import "strings"

// ShowBlanks replaces each space at the beginning and at the end of a name by "␣". Otherwise "A1"
// and "A1 " would look the same.
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
