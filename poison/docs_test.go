package poison_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"testing"

	"github.com/watermill-once/once/poison"
)

// The fields of an alias are in a package that go doc does not show: its comment
// has to name them.
func TestFieldsOfAliasesAreInTheirComments(t *testing.T) {
	comments := map[string]string{}
	for _, file := range []string{"operate.go", "replay.go"} {
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range source.Decls {
			if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.TYPE {
				comments[d.Specs[0].(*ast.TypeSpec).Name.Name] = d.Doc.Text()
			}
		}
	}
	for _, alias := range []any{poison.Entry{}, poison.Group{}, poison.Filter{}, poison.Act{}, poison.Replay{}} {
		kind := reflect.TypeOf(alias)
		for field := range kind.Fields() {
			if field.IsExported() && !regexp.MustCompile(`\b`+field.Name+`\b`).MatchString(comments[kind.Name()]) {
				t.Errorf("the comment of %s does not name %s", kind.Name(), field.Name)
			}
		}
	}
}
