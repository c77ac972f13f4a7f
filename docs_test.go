package once_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	files, err := filepath.Glob("snippets*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "tests/dropin/snippets_test.go", "tests/pgxoutbox/snippets_test.go") {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		compiled += unindent(string(source))
	}
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, page := range append(pages, "README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob("docs/decisions/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(append(pages, decisions...), "README.md", "SECURITY.md", "CHANGELOG.md",
		"examples/minimal/README.md", "examples/orders/README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range link.FindAllStringSubmatch(string(text), -1) {
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
			there, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(anchors(string(there)), target[2]) {
				t.Errorf("%s: %s has no part %s", page, path, target[2])
			}
		}
	}
}

var (
	trapTest = regexp.MustCompile(`(?m)^(?:// Trap |func TestTrap)(\d+)`)
	trapRow  = regexp.MustCompile(`(?m)^\| (\d+) \|.*\| ([^|]*) \|$`)
)

// Each trap with a test must have a row in docs/traps.md, and the row must link to all
// packages with such tests. A test names its trap at the beginning of the comment above
// it, or in its own name.
func TestEveryTrapIsInTheDocs(t *testing.T) {
	page, err := os.ReadFile("docs/traps.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // cells of the column of tests, by trap
	for _, row := range trapRow.FindAllStringSubmatch(string(page), -1) {
		rows[row[1]] = row[2]
	}
	found := 0
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, trap := range trapTest.FindAllStringSubmatch(string(source), -1) {
			found++
			number := strings.TrimPrefix(trap[1], "0")
			folder := strings.Replace(filepath.ToSlash(filepath.Dir(path)), ".", "root package", 1)
			if !strings.Contains(rows[number], "["+folder+"](") {
				t.Errorf("docs/traps.md: the row of trap %s does not link to %s, which has a test of the trap", number, folder)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 50 || found < 50 {
		t.Errorf("only %d rows and %d tests were found", len(rows), found)
	}
}

// fileInText matches the name of a Go file in the text of a comment.
var fileInText = regexp.MustCompile(`(?:^|[^*a-z_/])([a-z][a-z_]*\.go)\b`)

// The comment of each package with many files says in which order to read them, and the files that it
// names exist. The files of ent are generated, and need not be read.
func TestLargePackagesSayInWhichOrderToReadTheirFiles(t *testing.T) {
	packages := map[string][]string{} // the names of the files of each folder
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (name == "testdata" || name == "ent" || name == ".git"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const many = 6
	large := 0
	for dir, files := range packages {
		var named []string
		for _, file := range files {
			source, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			comment := string(source)
			if file != "doc.go" { // which has only comments
				comment, _, _ = strings.Cut(comment, "\npackage ")
			}
			for _, name := range fileInText.FindAllStringSubmatch(comment, -1) {
				named = append(named, name[1])
			}
		}
		if len(files) >= many {
			large++
			if len(named) == 0 {
				t.Errorf("%s has %d files, and no comment says in which order to read them", dir, len(files))
			}
		}
		for _, name := range named {
			if !slices.Contains(files, name) {
				t.Errorf("the comment of package %s names the file %s, which does not exist", dir, name)
			}
		}
	}
	if large < 20 {
		t.Errorf("only %d packages with %d files or more were found", large, many)
	}
}
