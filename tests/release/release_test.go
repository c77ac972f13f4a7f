// Package release tests what a release of the command line consists of: the binaries,
// their checksums, and the image.
package release

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
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

// "make release" writes binaries that run, and a file with their checksums. If the
// source is the same, the binaries are the same, byte for byte.
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
		binary, err := os.ReadFile(filepath.Join(dir, name))
		kit.OK(t, err)
		list, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
		kit.OK(t, err)
		sum := sha256.Sum256(binary)
		if want := hex.EncodeToString(sum[:]) + "  " + name + "\n"; string(list) != want {
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

// instructions returns the instructions of the Dockerfile, without comments.
func instructions(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/Dockerfile")
	kit.OK(t, err)
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
		case word == "FROM" && rest != "scratch" && !regexp.MustCompile(`^[a-z]+:[0-9][^ ]* AS [a-z]+$`).MatchString(rest):
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
