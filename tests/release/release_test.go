// Package release tests what a release of the command line consists of: the binaries,
// their checksums, and the image.
package release

import (
	"crypto/sha256"
	"encoding/hex"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }

// "make release" writes binaries that run, a list of the modules of each, and a file with the
// checksums. If the source is the same, the files are the same, byte for byte.
func TestRelease(t *testing.T) {
	kit.Long(t) // it links the command twice
	target := runtime.GOOS + "/" + runtime.GOARCH
	name := "once_" + strings.ReplaceAll(target, "/", "_")
	var sums []string
	for range 2 {
		dir := filepath.Join(t.TempDir(), "dist")
		if out, err := exec.CommandContext(t.Context(), "../../scripts/release.sh", "v9.8.7", dir, target).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		binary := kit.ReadFile(t, filepath.Join(dir, name))
		list := kit.ReadFile(t, filepath.Join(dir, "SHA256SUMS"))
		bom := kit.ReadFile(t, filepath.Join(dir, name+".cdx.json"))
		if !strings.Contains(string(bom), "pkg:golang/github.com/lib/pq@v") || !strings.Contains(string(bom), `"version": "v9.8.7"`) {
			t.Errorf("the list of modules is incomplete: %s", bom)
		}
		if want := line(binary, name) + line(bom, name+".cdx.json"); string(list) != want {
			t.Errorf("SHA256SUMS has %q, want %q", list, want)
		}
		sums = append(sums, string(list))
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, name), "--version").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "once v9.8.7 ") {
			t.Errorf("%v: %s", err, out)
		}
	}
	if sums[0] != sums[1] {
		t.Errorf("two builds of one source differ:\n%s%s", sums[0], sums[1])
	}
}

// line returns the line of a file in SHA256SUMS.
func line(content []byte, name string) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]) + "  " + name + "\n"
}

// A copy of the source, with a repository of its own: scripts/tag.sh creates tags whose modules require
// the tagged library, and scripts/api.sh compares the next version with them.
func TestTagsAndAPI(t *testing.T) {
	kit.Long(t) // it builds all modules
	dir := t.TempDir()
	run := func(command string) (string, error) {
		shell := exec.CommandContext(t.Context(), "sh", "-euc", command)
		shell.Dir = dir
		out, err := shell.CombinedOutput()
		return string(out), err
	}
	must := func(command string) string {
		t.Helper()
		out, err := run(command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return out
	}
	refused := func(command, want string) {
		t.Helper()
		if out, err := run(command); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s\nwant an error with %q", command, err, out, want)
		}
	}
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run("git -C '" + source + "' ls-files --error-unmatch go.mod"); err != nil {
		t.Skip("the source is in no git repository, which lists its files")
	}
	files := "git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2>/dev/null"
	must("(cd '" + source + "' && " + files + " | tar -cf - -T -) | tar xf -")
	must(`git init -q . && git config user.name test && git config user.email test@example.com && git add -A && git commit -qm source`)
	if out := must("scripts/api.sh"); !strings.Contains(out, "no release yet") {
		t.Error(out)
	}
	refused("scripts/tag.sh 0.4.0", "usage")
	refused("scripts/tag.sh v0.4.0", `no section "## 0.4.0 (date)"`)
	must("sed -i.bak '1,/^## /s/^## .*/## 0.4.0 (2000-01-02)/' CHANGELOG.md && rm CHANGELOG.md.bak")
	refused("scripts/tag.sh v0.4.0", "commit them first")
	must("git commit -qam 0.4.0 && scripts/tag.sh v0.4.0")
	refused("scripts/tag.sh v0.4.0", "v0.4.0 exists")
	for _, module := range []string{"cmd/once", "rabbit/amqpv3", "outbox/pgxoutbox", "outbox/sqlv4"} {
		file := must("git show " + module + "/v0.4.0:" + module + "/go.mod")
		if !strings.Contains(file, "github.com/watermill-once/once v0.4.0\n") || strings.Contains(file, "replace") {
			t.Errorf("%s: users cannot get this module:\n%s", module, file)
		}
	}

	must("echo 'func (Marshaler) More() {}' >> rabbit/marshaler.go") // an addition is compatible
	must("sed -i.bak 's/^func NewMessage(/func NewEvent(/' outbox/*.go && rm outbox/*.bak")
	must("echo '-- more' >> schema/sqlite/0001_tables.sql")
	out, err := run("scripts/api.sh")
	for text, want := range map[string]bool{"outbox.NewMessage: removed": true, "schema/sqlite/0001_tables.sql": true, "More": false} {
		if err == nil || strings.Contains(out, text) != want {
			t.Errorf("scripts/api.sh: %v\n%s\nwant an error, with %q: %v", err, out, text, want)
		}
	}
	must("git checkout -q schema")
	must(`(printf '## 0.5.0 (not tagged yet)\n\n- outbox.NewMessage is now outbox.NewEvent.\n\n'; cat CHANGELOG.md) > new`)
	must("mv new CHANGELOG.md && scripts/api.sh")
}

var versioned = regexp.MustCompile(`^(--platform=\$BUILDPLATFORM )?[a-z]+:[0-9][^ ]* AS [a-z]+$`)

// instructions returns the instructions of the Dockerfile, without comments.
func instructions(t *testing.T) (all []string) {
	t.Helper()
	text := kit.ReadFile(t, "../../deploy/Dockerfile")
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

// The Dockerfile must follow some rules of a common linter, for example that it names
// versions and contains no secrets.
func TestDockerfile(t *testing.T) {
	all := instructions(t)
	last := slices.IndexFunc(all, func(line string) bool { return line == "FROM scratch" })
	if last < 0 {
		t.Fatal("the image is not built from scratch")
	}
	for i, line := range all {
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case word == "FROM" && rest != "scratch" && !versioned.MatchString(rest):
			t.Errorf("%s: name a version", line)
		case word == "ADD":
			t.Errorf("%s: use COPY", line)
		case word == "WORKDIR" && !strings.HasPrefix(rest, "/"):
			t.Errorf("%s: an absolute path", line)
		case (word == "ENTRYPOINT" || word == "CMD") && !strings.HasPrefix(rest, "["):
			t.Errorf("%s: a list, so that signals reach the process", line)
		case word == "RUN" && i > last:
			t.Errorf("%s: scratch has no shell", line)
		case word == "RUN" && strings.Contains(rest, "cd "), word == "RUN" && strings.Contains(rest, "sudo"):
			t.Errorf("%s: use WORKDIR and USER", line)
		case (word == "ENV" || word == "ARG") && regexp.MustCompile(`(?i)password|secret|token`).MatchString(rest):
			t.Errorf("%s: a secret stays in the image", line)
		}
	}
	image := all[last:]
	for _, want := range []string{"USER 65532:65532", `ENTRYPOINT ["/once"]`, "COPY --from=build /once /once"} {
		if !slices.Contains(image, want) {
			t.Errorf("the image has no %s", want)
		}
	}
	if !slices.ContainsFunc(all, func(line string) bool { return strings.Contains(line, "CGO_ENABLED=0") }) {
		t.Error("a binary with cgo does not run in scratch")
	}
}
