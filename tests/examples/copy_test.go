// Package examples tests the examples the way a reader uses them: copied out of
// the repository, under another module path.
package examples

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

const (
	// module is the path of the module that the reader creates.
	module = "example.org/shop"

	// source is the directory of the examples' module.
	source = "../../examples"
)

func TestMain(m *testing.M) { kit.Main(m) }

// copied copies a folder of the examples into a module of its own and returns the module's
// directory. Imports of the folder's own packages get the new path. The module has the same
// requirements as the examples' module, but takes the library from this repository.
func copied(t *testing.T, folder string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shop")
	files := os.DirFS(filepath.Join(source, folder))
	kit.OK(t, fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".go") {
			content = []byte(strings.ReplaceAll(string(content), "github.com/watermill-once/once/examples/"+folder, module))
		}
		return write(filepath.Join(dir, path), content)
	}))
	for _, name := range []string{"go.mod", "go.sum"} {
		content := kit.ReadFile(t, filepath.Join(source, name))
		kit.OK(t, write(filepath.Join(dir, name), content))
	}
	repository, err := filepath.Abs("../..")
	kit.OK(t, err)
	runGo(t, dir, "mod", "edit", "-module="+module, "-replace=github.com/watermill-once/once="+repository)
	return dir
}

func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// runGo runs the go command in dir, outside of the repository's workspace.
func runGo(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}
