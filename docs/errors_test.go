package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

var update = flag.Bool("update", false, "write docs/errors.md")

const errorsHead = `# Errors by their text

An error contains one of these texts, and also the values and the remedy. Errors whose text says everything are left out. In code, use
` + "`errors.Is`" + `. For tables that are too old or too new, see [upgrading](upgrading.md). For log lines and symptoms, see
[trouble](trouble.md).

<!-- go test ./docs -run TestErrorsPage -update writes this table from the comments in the code. -->

| text | error | meaning |
|---|---|---|
`

// exported is an error variable of a package.
type exported struct{ name, text, meaning, alias string }

// The page lists the exported errors of the library, each with its text and the first sentence of its comment. Errors
// whose text says the same as this sentence are left out. With -update the test writes the page.
func TestErrorsPageListsEveryExportedError(t *testing.T) {
	all := exportedErrors(t)
	var rows []string
	found := 0
	for name, e := range all {
		if strings.HasPrefix(name, "internal.") {
			continue
		}
		if e.alias != "" {
			original, ok := all[e.alias]
			if !ok {
				original, ok = all["internal."+e.alias]
			}
			if !ok {
				t.Errorf("%s is %s, which has no text", name, e.alias)
			}
			if strings.Contains(e.alias, "operate.") {
				continue // it has a row as the error of package operate
			}
			e.text = original.text
		}
		if e.meaning == "" {
			t.Errorf("%s has no comment that says what it means", name)
		}
		found++
		if !says(e.text, e.meaning) {
			rows = append(rows, fmt.Sprintf("| %s | `%s` | %s |\n", strings.ReplaceAll(e.text, "|", `\|`), e.name, e.meaning))
		}
	}
	if found < 60 {
		t.Fatalf("only %d errors were found", found)
	}
	slices.SortFunc(rows, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	want := errorsHead + strings.Join(rows, "")
	if *update {
		kit.OK(t, os.WriteFile("docs/errors.md", []byte(want), 0o600))
	}
	if got, err := os.ReadFile("docs/errors.md"); err != nil || string(got) != want {
		t.Errorf("docs/errors.md is not what the code says (%v): run go test ./docs -run TestErrorsPage -update", err)
	}
}

// exportedErrors returns the variables of all packages whose names begin with Err, by package and name. Errors of internal
// packages have the prefix "internal.".
func exportedErrors(t *testing.T) map[string]exported {
	t.Helper()
	all := map[string]exported{}
	for path, file := range sources(t) {
		prefix := ""
		if strings.Contains(path, "internal/") {
			prefix = "internal."
		}
		for _, d := range file.Decls {
			vars, ok := d.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			for _, s := range vars.Specs {
				spec := s.(*ast.ValueSpec)
				name := spec.Names[0].Name
				if !strings.HasPrefix(name, "Err") || len(spec.Values) != 1 {
					continue
				}
				comment := spec.Doc.Text()
				if comment == "" {
					comment = vars.Doc.Text()
				}
				e := exported{name: file.Name.Name + "." + name, text: constant(spec.Values[0]), meaning: meaning(name, comment)}
				if selector, ok := spec.Values[0].(*ast.SelectorExpr); ok {
					e.alias = selector.X.(*ast.Ident).Name + "." + selector.Sel.Name
				}
				key := prefix + e.name
				if prefix == "" {
					key = filepath.Dir(path) + "/" + key // package outbox and package operate/outbox have the same name
					if file.Name.Name == "operate" {
						key = e.name
					}
				}
				all[key] = e
			}
		}
	}
	return all
}

// sources returns the parsed files of the library, without tests and examples.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	set := token.NewFileSet()
	kit.OK(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{"examples", "tests", "tools", ".git", "cmd"}, path) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files[filepath.ToSlash(path)], err = parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		return err
	}))
	return files
}

// constant returns the strings in an expression, one after another.
func constant(expression ast.Expr) string {
	var text strings.Builder
	ast.Inspect(expression, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			part, err := strconv.Unquote(literal.Value)
			if err == nil {
				text.WriteString(part)
			}
		}
		return true
	})
	return text.String()
}

var (
	sentence = regexp.MustCompile(`^.*?[.:](?: |$)`)
	subject  = regexp.MustCompile(`^Err\w+ (?:means that|means|is returned (?:if|when|by [A-Z]\w+ (?:if|when))|is the error of|says that|is) `)
	brackets = regexp.MustCompile(`\[([A-Za-z.]+)\]`)
)

// says reports whether a text says nearly the same as a meaning: a third of the words of the meaning are in the text.
func says(text, meaning string) bool {
	words, found := 0, 0
	for word := range strings.FieldsSeq(strings.ToLower(meaning)) {
		if word = strings.Trim(word, ".,`"); len(word) > 3 {
			words++
			if strings.Contains(strings.ToLower(text), word) {
				found++
			}
		}
	}
	return 3*found >= words
}

// meaning returns the first sentence of a comment, without "ErrName means that". If this sentence only announces the
// next ones, it returns those.
func meaning(name, comment string) string {
	text := strings.Join(strings.Fields(comment), " ")
	first := strings.TrimRight(sentence.FindString(text+" "), ".: ")
	first = strings.ReplaceAll(first, ", or that ", ", or ")
	first = strings.ReplaceAll(first, ", and that ", ", and ")
	first = brackets.ReplaceAllString(subject.ReplaceAllString(first, ""), "`$1`")
	if strings.HasPrefix(first, name) {
		return strings.TrimRight(strings.TrimPrefix(text, sentence.FindString(text)), ".")
	}
	if first == "" {
		return ""
	}
	return strings.ReplaceAll(strings.ToUpper(first[:1])+first[1:], "|", `\|`)
}

var (
	logged = regexp.MustCompile("(?m)^\\| `([A-Z][^`]{12,})` \\|")
	spaces = regexp.MustCompile(`" \+\s+"`)
)

// The log lines that the page about trouble explains are in the code.
func TestLogLinesOfThePageAreInTheCode(t *testing.T) {
	page := kit.ReadFile(t, "docs/trouble.md")
	var code strings.Builder
	for path := range sources(t) {
		source := kit.ReadFile(t, path)
		code.WriteString(spaces.ReplaceAllString(string(source), ""))
	}
	lines := logged.FindAllStringSubmatch(string(page), -1)
	if len(lines) < 8 {
		t.Fatalf("only %d log lines were found", len(lines))
	}
	for _, line := range lines {
		if !strings.Contains(code.String(), `"`+line[1]) {
			t.Errorf("docs/trouble.md: no log line begins with %q", line[1])
		}
	}
}
