package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// go doc shows neither the fields nor the methods of an alias of an internal
// type.
func TestNoPublicTypeIsAnAliasOfAnInternalOne(t *testing.T) {
	var files []string
	for _, pattern := range []string{"*.go", "*/*.go", "*/*/*.go"} {
		found, err := filepath.Glob(pattern)
		kit.OK(t, err)
		files = append(files, found...)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "tests/") || strings.Contains("/"+path, "/internal/") {
			continue
		}
		text := kit.ReadFile(t, path)
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		kit.OK(t, err)
		internal := map[string]bool{}
		for _, spec := range file.Imports {
			if where := strings.Trim(spec.Path.Value, `"`); strings.Contains(where, "/internal/") {
				internal[filepath.Base(where)] = true
			}
		}
		for node := range ast.Preorder(file) {
			alias, ok := node.(*ast.TypeSpec)
			if !ok || !alias.Assign.IsValid() || !alias.Name.IsExported() {
				continue
			}
			if of, ok := alias.Type.(*ast.SelectorExpr); ok && internal[of.X.(*ast.Ident).Name] {
				t.Errorf("%s: %s is an alias of %s.%s", path, alias.Name, of.X, of.Sel)
			}
		}
	}
}

func TestContributingNamesEveryFolderOfTests(t *testing.T) {
	page := kit.ReadFile(t, "CONTRIBUTING.md")
	entries, err := os.ReadDir("tests")
	kit.OK(t, err)
	for _, e := range entries {
		if name := e.Name(); e.IsDir() && name != "testdata" && !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("CONTRIBUTING.md: the table of tests/ has no folder `%s`", name)
		}
	}
}
