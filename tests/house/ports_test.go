package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// SECURITY.md promises that the library opens no port, except in package hint, and
// starts no program. The promise does not apply to tests, examples and the command
// line.
func TestOnlyHintOpensPorts(t *testing.T) {
	t.Parallel()
	others := []string{"cmd/", "examples/", "tests/", "tools/", "internal/test/"}
	opens := map[string]bool{}
	files := token.NewFileSet()
	kit.OK(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, other := range others {
			if strings.HasPrefix(path, other) {
				return nil
			}
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, imported := range file.Imports {
			if name, _ := strconv.Unquote(imported.Path.Value); name == "os/exec" || name == "plugin" {
				t.Errorf("%s imports %s", path, name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if use, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(strings.TrimPrefix(use.Sel.Name, "File"), "Listen") {
				opens[filepath.Dir(path)] = true
			}
			return true
		})
		return nil
	}))
	if len(opens) != 1 || !opens["forwarder/hint"] {
		t.Errorf("ports are opened in %v, want only in forwarder/hint", opens)
	}
}
