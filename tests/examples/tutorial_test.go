package examples

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// block is a block of docs/tutorial.md: commands ("sh"), or their output ("text").
var block = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```")

// changes finds commands that change messages.
var changes = regexp.MustCompile(`tutorial place|--yes`)

// Every command of the tutorial is run, in its order, and prints what the page shows. A line that ends with "..." is the
// beginning of a printed line.
func TestTutorial(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	page := kit.ReadFile(t, "../../docs/tutorial.md")
	r := &reader{T: t, dir: t.TempDir(), env: os.Environ()}
	r.build("./examples/tutorial", "../../examples", "./tutorial")
	r.build("./cmd/once", "../../cmd/once", ".")
	defer r.interrupt()
	checkpoints := 0
	for _, b := range block.FindAllStringSubmatch(string(page), -1) {
		if b[1] == "text" {
			checkpoints++
			r.expect(b[2])
			continue
		}
		r.run(b[2])
	}
	if checkpoints < 5 {
		t.Errorf("only %d checkpoints were found", checkpoints)
	}
}

// reader does what a reader of the tutorial does.
type reader struct {
	*testing.T
	dir    string
	env    []string
	built  []string      // "go run FOLDER" and the program that takes its place
	work   *exec.Cmd     // runs in the second terminal; nil before
	second *kit.Buffer   // its output
	shown  func() string // what the latest commands have printed
}

func (r *reader) build(folder, module, pkg string) {
	r.Helper()
	program := filepath.Join(r.dir, filepath.Base(folder))
	cmd := exec.CommandContext(r.Context(), "go", "build", "-o", program, pkg)
	cmd.Dir = module
	if output, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("go build of %s: %v\n%s", folder, err, output)
	}
	r.built = append(r.built, "go run "+folder, program)
}

// run runs the commands of a block. A block that begins with "# second terminal" ends what runs there, and runs its
// command there.
func (r *reader) run(commands string) {
	r.Helper()
	if strings.HasPrefix(commands, "git clone ") {
		return // the repository is here
	}
	script := strings.NewReplacer(r.built...).Replace(commands)
	if _, command, second := strings.Cut(script, "# second terminal\n"); second {
		r.interrupt()
		r.work, r.second = r.command("exec env "+command), &kit.Buffer{}
		r.work.Stdout, r.work.Stderr = r.second, r.second
		kit.OK(r, r.work.Start())
		r.shown = r.second.String
		return
	}
	for line := range strings.Lines(script) {
		if setting, found := strings.CutPrefix(strings.TrimSpace(line), "export "); found {
			r.env = append(r.env, setting)
		}
	}
	output, err := r.command(script).CombinedOutput()
	if err != nil {
		r.Fatalf("%s: %v\n%s\nsecond terminal:\n%s", commands, err, output, r.second)
	}
	r.shown = func() string {
		if !changes.MatchString(commands) { // a command that only looks is repeated until it shows what the page shows
			output, _ = r.command(script).CombinedOutput()
		}
		return string(output)
	}
}

func (r *reader) command(script string) *exec.Cmd {
	cmd := exec.CommandContext(r.Context(), "sh", "-e", "-c", script)
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.WaitDelay = time.Second
	return cmd
}

func (r *reader) expect(lines string) {
	r.Helper()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-look.C {
		output, missing := r.shown(), ""
		for line := range strings.Lines(lines) {
			if want := strings.TrimSuffix(strings.TrimSpace(line), "..."); !strings.Contains(spaced(output), spaced(want)) {
				missing = want
				break
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("the page shows %q, and the command prints:\n%s\nsecond terminal:\n%s", missing, output, r.second)
		}
	}
}

var columns = regexp.MustCompile(` {2,}`)

// spaced replaces the spaces between the columns of a table with one space.
func spaced(text string) string { return columns.ReplaceAllString(text, " ") }

// interrupt presses Ctrl-C in the second terminal.
func (r *reader) interrupt() {
	r.Helper()
	if r.work == nil {
		return
	}
	kit.Check(r, r.work.Process.Signal(syscall.SIGINT))
	if err := r.work.Wait(); err != nil {
		r.Errorf("the second terminal ended with %v:\n%s", err, r.second)
	}
	r.work = nil
}

// The first program of the README handles its order. It is started, and stopped when it has printed the order.
func TestFirstProgramOfTheReadme(t *testing.T) {
	t.Parallel()
	readme := kit.ReadFile(t, "../../README.md")
	source := kit.ReadFile(t, "../../examples/first/main.go")
	if !bytes.Contains(readme, fmt.Appendf(nil, "```go\n%s```", source)) {
		t.Error("README.md does not contain examples/first/main.go")
	}
	if n := bytes.Count(source, []byte("\n")); n > 45 {
		t.Errorf("examples/first/main.go has %d lines, want 45 or fewer", n)
	}
	kit.Long(t)
	r := &reader{T: t, dir: t.TempDir(), env: os.Environ()}
	r.build("./examples/first", "../../examples", "./first")
	r.work, r.second = r.command("exec "+r.built[1]), &kit.Buffer{}
	r.work.Stdout, r.work.Stderr = r.second, r.second
	kit.OK(t, r.work.Start())
	kit.Eventually(t, time.Minute, "the order is paid", func() bool { return strings.Contains(r.second.String(), "paying order-1\n") })
	if err := r.work.Process.Kill(); err != nil { // it runs until it is killed
		t.Error(err)
	}
	_ = r.work.Wait()
}
