package failpoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/test/kit"
)

const module = "../.."

// hits returns the places in the library at which each point is hit.
func hits(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	files := token.NewFileSet()
	kit.OK(t, filepath.WalkDir(module, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "tests" || strings.HasPrefix(entry.Name(), ".") && path != module):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); !ok || types.ExprString(f) != "failpoint.Hit" {
				return true
			}
			at := files.Position(call.Pos()).String()
			literal, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the name is not a literal", at)
				return true
			}
			name, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Errorf("%s: %v", at, err)
			}
			found[name] = append(found[name], at)
			return true
		})
		return nil
	}))
	return found
}

func TestPointsListsAllPointsInTheCode(t *testing.T) {
	found := hits(t)
	for name, places := range found {
		if len(places) > 1 {
			t.Errorf("%s is in several places: %v", name, places)
		}
		if !slices.Contains(failpoint.Points, name) {
			t.Errorf("%s is not in Points: %v", name, places)
		}
	}
	for _, name := range failpoint.Points {
		if found[name] == nil {
			t.Errorf("%s is in Points, but not in the code", name)
		}
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(failpoint.Points)))); n != len(failpoint.Points) || n < 40 {
		t.Errorf("%d points, but only %d different names", len(failpoint.Points), n)
	}
	t.Logf("%d points in %d places", len(failpoint.Points), len(slices.Collect(maps.Keys(found))))
}

// Without the tag the compiler removes the calls.
func TestPointsCostNothingWithoutTag(t *testing.T) {
	build := func(args ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "go", append([]string{"build"}, args...)...)
		command.Dir = module
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		return string(output)
	}
	if said := build("-gcflags=-m=2", "./internal/failpoint"); !strings.Contains(said, "can inline Hit with cost 0 as: func(string) {  }") {
		t.Errorf("Hit is not empty: %s", said)
	}
	if said := build("-gcflags=-m=2", "-tags=failpoints", "./internal/failpoint"); strings.Contains(said, "can inline Hit with cost 0") {
		t.Errorf("with the tag Hit is: %s", said)
	}
}
