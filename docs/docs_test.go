package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// unindent removes indentation, which a formatter may change.
func unindent(code string) string {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

func TestCodeInTheDocsCompiles(t *testing.T) {
	var compiled string
	files, err := filepath.Glob("docs/snippets*_test.go")
	kit.OK(t, err)
	for _, file := range append(files, "tests/dropin/snippets_test.go", "tests/dropin/cqrs_page_test.go", "tests/pgxoutbox/snippets_test.go",
		"tests/cloudevents/cloudevents_test.go",
		"tests/stock/snippets_test.go", "examples/first/main.go") {
		source := kit.ReadFile(t, file)
		compiled += unindent(string(source))
	}
	pages, err := filepath.Glob("docs/*.md")
	kit.OK(t, err)
	blocks := 0
	for _, page := range append(pages, "README.md") {
		text := kit.ReadFile(t, page)
		for _, block := range goBlock.FindAllStringSubmatch(string(text), -1) {
			blocks++
			if !strings.Contains(compiled, unindent(block[1])) {
				t.Errorf("%s: this code is in no snippets_test.go, so nothing compiles it:\n%s", page, block[1])
			}
		}
	}
	if blocks < 5 {
		t.Errorf("only %d code blocks were found", blocks)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the anchors of the headings of a page, by GitHub's rules.
func anchors(page string) []string {
	var all []string
	for _, h := range heading.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}

func TestLinksInTheDocsLeadSomewhere(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	kit.OK(t, err)
	deeper, err := filepath.Glob("docs/*/*.md")
	kit.OK(t, err)
	for _, page := range append(append(pages, deeper...), "README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md",
		"AGENTS.md", "llms.txt", "cmd/once/JSON.md", "examples/minimal/README.md", "examples/orders/README.md") {
		text := kit.ReadFile(t, page)
		for _, target := range link.FindAllStringSubmatch(goBlock.ReplaceAllString(string(text), ""), -1) {
			path := page
			if target[1] != "" {
				path = filepath.Join(filepath.Dir(page), target[1])
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", page, target[1])
				continue
			}
			if target[2] == "" {
				continue
			}
			there := kit.ReadFile(t, path)
			if !slices.Contains(anchors(string(there)), target[2]) {
				t.Errorf("%s: %s has no part %s", page, path, target[2])
			}
		}
	}
}

// A page that is longer answers more than one question.
func TestPagesAreShort(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	kit.OK(t, err)
	contributing, err := filepath.Glob("docs/contributing/*.md")
	kit.OK(t, err)
	for _, page := range append(append(pages, contributing...), "README.md") {
		text := kit.ReadFile(t, page)
		most := 300
		if page == "README.md" {
			most = 200
		}
		if lines := strings.Count(string(text), "\n"); lines > most {
			t.Errorf("%s has %d lines, want at most %d: make two pages of it, or leave something out", page, lines, most)
		}
	}
}

var (
	trapTest = regexp.MustCompile(`(?m)^(?:// Trap |func TestTrap)(\d+)`)
	trapRow  = regexp.MustCompile(`(?m)^\| (\d+) \|.*\| ([^|]*) \|$`)
)

// Each trap with a test must have a row in docs/contributing/traps.md, and the row must link to all
// packages with such tests. A test names its trap at the beginning of the comment above
// it, or in its own name.
func TestEveryTrapIsInTheDocs(t *testing.T) {
	page, err := os.ReadFile("docs/contributing/traps.md")
	kit.OK(t, err)
	rows := map[string]string{} // cells of the column of tests, by trap
	for _, row := range trapRow.FindAllStringSubmatch(string(page), -1) {
		rows[row[1]] = row[2]
	}
	found := 0
	kit.OK(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, trap := range trapTest.FindAllStringSubmatch(string(source), -1) {
			found++
			number := strings.TrimPrefix(trap[1], "0")
			folder := strings.Replace(filepath.ToSlash(filepath.Dir(path)), ".", "root package", 1)
			if !strings.Contains(rows[number], "["+folder+"](") {
				t.Errorf("docs/contributing/traps.md: the row of trap %s does not link to %s, which has a test of the trap", number, folder)
			}
		}
		return err
	}))
	if len(rows) < 50 || found < 50 {
		t.Errorf("only %d rows and %d tests were found", len(rows), found)
	}
}
