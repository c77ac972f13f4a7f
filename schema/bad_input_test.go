package schema

import (
	"strings"
	"testing"
)

// If Validate accepts a configuration, its names are short enough that PostgreSQL does
// not truncate them. They contain no quotes, so they cannot end the quotes around them.
func FuzzNames(f *testing.F) {
	f.Add("postgres", "app", "once_")
	f.Add("sqlite", "", "x")
	f.Add("postgres", `a"; DROP TABLE x; --`, "{outbox}")
	f.Add("", "a\nb", "önce_")
	f.Add("", "_", strings.Repeat("p", 45))
	f.Fuzz(func(t *testing.T, dialect, schema, prefix string) {
		c := Config{Dialect: Dialect(dialect), Schema: schema, Prefix: prefix}
		if c.Validate() != nil {
			return
		}
		for _, d := range []Dialect{PostgreSQL, SQLite} {
			for _, m := range migrations(d) {
				for _, match := range placeholder.FindAllStringSubmatch(m.text, -1) {
					for _, name := range []string{c.Table(match[2]), c.index(match[2])} {
						for part := range strings.SplitSeq(name, ".") {
							inner := strings.Trim(part, `"`)
							if part != `"`+inner+`"` || len(inner) == 0 || len(inner) > 63 || strings.ContainsAny(inner, "\"'\\;{}$ \n\x00") {
								t.Fatalf("%q is accepted for %+v", name, c)
							}
						}
					}
				}
				if text := c.expand(m.text); strings.Contains(text, "{") {
					t.Fatalf("a placeholder is left in %s", text)
				}
			}
		}
	})
}
