// Command size prints how large the repository is, beside the goals for each figure. make size runs
// it in the root of the repository.
//
// The code is the packages of the library, of the command line and of the modules beside the library
// (outbox/pgxoutbox, outbox/sqlv4, rabbit/amqpv3). Tests, examples, tools, generated files and what
// only tests import (tests, internal/test) are no code.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

const library = "github.com/watermill-once/once"

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

func run(w io.Writer) error {
	s, err := measure()
	if err != nil {
		return err
	}
	unexported := 0
	if s.unexported > 0 {
		unexported = 100 * s.documented / s.unexported
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "now\tgoal\t\t")
	for _, row := range []struct {
		now, goal int
		what      string
	}{
		{s.folders, 25, "folders in the root, with .ci and .github, without .git"},
		{s.entries, 55, "entries in the root, with files"},
		{s.packages, 42, "packages of the library's module and cmd/once, without internal/test"},
		{s.files, 380, "source files of the code"},
		{s.lines, 60000, "lines in them"},
		{s.exported, 600, "exported functions, types, methods, constants and variables of the library's public packages"},
		{s.configs, 0, "structs named Config or ...Config in them"},
		{s.fields, 200, "exported fields of these structs"},
		{s.parameter, 10, `"the parameter " in the comments of the code`},
		{unexported, 40, "percent of the code's unexported functions and methods have a doc comment"},
	} {
		goal, over := "", ""
		if row.goal > 0 {
			goal = fmt.Sprint(row.goal)
			if row.now > row.goal {
				over = "over"
			}
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t  %s\n", row.now, goal, over, row.what)
	}
	return t.Flush()
}

// size has the figures of the repository.
type size struct {
	folders, entries       int
	packages               int
	files, lines           int
	exported               int
	configs, fields        int
	parameter              int
	unexported, documented int // functions and methods; those with a doc comment
}

func measure() (*size, error) {
	s := &size{}
	if err := s.countRoot("."); err != nil {
		return nil, err
	}
	own, err := list("./...")
	if err != nil {
		return nil, err
	}
	beside, err := list("./cmd/once/...", "./outbox/pgxoutbox/...", "./outbox/sqlv4/...", "./rabbit/amqpv3/...")
	if err != nil {
		return nil, err
	}
	for _, p := range append(own, beside...) {
		if len(p.GoFiles) == 0 { // docs: only tests
			continue
		}
		if strings.HasPrefix(p.ImportPath+"/", library+"/internal/test/") {
			continue
		}
		if p.Module.Path == library || p.ImportPath == library+"/cmd/once" {
			s.packages++
		}
		if err := s.countPackage(p); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *size) countRoot(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	tracked, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	in := map[string]bool{}
	for path := range strings.FieldsSeq(string(tracked)) {
		first, _, _ := strings.Cut(path, "/")
		in[first] = true
	}
	for _, entry := range entries {
		if !in[entry.Name()] {
			continue
		}
		s.entries++
		if entry.IsDir() {
			s.folders++
		}
	}
	return nil
}

// listed is what go list prints about a package.
type listed struct {
	ImportPath     string   `json:"ImportPath"`
	Dir            string   `json:"Dir"`
	Name           string   `json:"Name"`
	GoFiles        []string `json:"GoFiles"`
	IgnoredGoFiles []string `json:"IgnoredGoFiles"` // those with other build tags
	Module         struct {
		Path string `json:"Path"`
	} `json:"Module"`
}

func list(patterns ...string) ([]listed, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Name,GoFiles,IgnoredGoFiles,Module"}, patterns...)...)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
}

func (s *size) countPackage(p listed) error {
	forUsers := p.Module.Path == library && p.Name != "main" && !strings.Contains(p.ImportPath+"/", "/internal/")
	for _, name := range append(p.GoFiles, p.IgnoredGoFiles...) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if ast.IsGenerated(file) {
			continue
		}
		s.files++
		s.lines += bytes.Count(source, []byte("\n"))
		for _, comment := range file.Comments { // a line may end between the words
			words := strings.ToLower(strings.Join(strings.Fields(comment.Text()), " ")) + " "
			s.parameter += strings.Count(words, "the parameter ")
		}
		for _, decl := range file.Decls {
			s.countComment(decl)
			if forUsers {
				s.countExported(decl)
			}
		}
	}
	return nil
}

func (s *size) countComment(decl ast.Decl) {
	if f, ok := decl.(*ast.FuncDecl); ok && !f.Name.IsExported() {
		s.unexported++
		if f.Doc.Text() != "" {
			s.documented++
		}
	}
}

// countExported counts a method only if its type is exported, too.
func (s *size) countExported(decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
			s.exported++
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.IsExported() {
					s.exported++
					s.countConfig(spec)
				}
			case *ast.ValueSpec:
				s.exported += exported(spec.Names)
			}
		}
	}
}

// receiver returns the name of the type of a method.
func receiver(typ ast.Expr) string {
	switch t := typ.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

func exported(names []*ast.Ident) int {
	n := 0
	for _, name := range names {
		if name.IsExported() {
			n++
		}
	}
	return n
}

func (s *size) countConfig(spec *ast.TypeSpec) {
	structure, ok := spec.Type.(*ast.StructType)
	if !ok || !strings.HasSuffix(spec.Name.Name, "Config") {
		return
	}
	s.configs++
	for _, field := range structure.Fields.List {
		if field.Names == nil {
			s.fields++ // an embedded struct
		}
		s.fields += exported(field.Names)
	}
}
