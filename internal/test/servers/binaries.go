package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrNotInstalled reports that the binaries of a server were not found.
var ErrNotInstalled = errors.New("not installed (scripts/deps.sh installs it)")

// findDir returns a directory that contains all named binaries. If binDir is not "",
// findDir tries only this directory. Otherwise it tries the given places in their
// order. A place is "$PATH" or a file pattern. For a pattern, findDir tries the newest
// version first.
func findDir(binDir string, places []string, names ...string) (string, error) {
	dirs := []string{binDir}
	if binDir == "" {
		dirs = nil
		for _, place := range places {
			dirs = append(dirs, directories(place, names[0])...)
		}
	}
	for _, dir := range dirs {
		if !slices.ContainsFunc(names, func(name string) bool { return !executable(filepath.Join(dir, name)) }) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s: %w", names[0], ErrNotInstalled)
}

func directories(place, name string) []string {
	if place == "$PATH" {
		found, err := exec.LookPath(name)
		if err != nil {
			return nil
		}
		return []string{filepath.Dir(found)}
	}
	found, _ := filepath.Glob(place) // Glob fails only if the pattern is invalid
	slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	return found
}

var number = regexp.MustCompile(`\d+`)

// version returns the first number in a path. So .../postgresql/16/bin counts as newer
// than .../postgresql/9.6/bin.
func version(path string) int {
	n, _ := strconv.Atoi(number.FindString(path))
	return n
}

func executable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// Environment variables that choose the versions of servers, for example "18" and
// "4.3". They apply to private servers whose configuration names no version. With
// them, [Resolve] refuses running servers of other versions.
const (
	PostgresVariable = "ONCE_TEST_PG"
	RabbitVariable   = "ONCE_TEST_RABBIT"
)

// versionError is the error for a version that this machine does not have.
type versionError struct{ server, version string }

func (m versionError) Error() string {
	return fmt.Sprintf("%s %s is not on this machine (scripts/newer-servers.sh %[2]s fetches a newer version)", m.server, m.version)
}

// Is makes the error an [ErrNotInstalled].
func (m versionError) Is(target error) bool { return target == ErrNotInstalled }

// roots returns the directories below which servers are installed as Debian's packages
// install them: those that scripts/newer-servers.sh has unpacked, and the root of the
// file system.
func roots() []string { return append(unpacked(), "/") }

func unpacked() []string {
	cache, err := os.UserCacheDir()
	if os.Geteuid() == 0 && os.Getenv("XDG_CACHE_HOME") == "" {
		cache, err = "/var/cache", nil // as in the script
	}
	if err != nil {
		return nil
	}
	complete, _ := filepath.Glob(filepath.Join(cache, "watermill-once", "servers", "*", ".done"))
	for i, file := range complete {
		complete[i] = filepath.Dir(file)
	}
	return complete
}

// ChooseNewest chooses the newest servers that scripts/newer-servers.sh has unpacked, by
// setting the environment variables of the versions. It changes nothing if one of these
// variables or PG_DSN or AMQP_URL is set, or if no unpacked directory has both servers.
func ChooseNewest() error {
	for _, name := range []string{PostgresVariable, RabbitVariable, "PG_DSN", "AMQP_URL"} {
		if os.Getenv(name) != "" {
			return nil
		}
	}
	newest, rabbit := 0, ""
	for _, root := range unpacked() {
		postgres, _ := filepath.Glob(filepath.Join(root, "usr/lib/postgresql/*"))
		rabbits, _ := filepath.Glob(filepath.Join(root, "usr/lib/rabbitmq/lib/rabbitmq_server-*"))
		if len(postgres) == 0 || len(rabbits) == 0 {
			continue
		}
		if n, _ := strconv.Atoi(filepath.Base(postgres[0])); n > newest {
			newest, rabbit = n, series.FindString(filepath.Base(rabbits[0]))
		}
	}
	if newest == 0 {
		return nil
	}
	return errors.Join(os.Setenv(PostgresVariable, strconv.Itoa(newest)), os.Setenv(RabbitVariable, rabbit))
}

// series matches the first two numbers of a version of RabbitMQ.
var series = regexp.MustCompile(`\d+\.\d+`)

func postgresDir(version string) (string, error) {
	places := []string{"/usr/pgsql-" + version + "/bin"}
	for _, prefix := range []string{"/opt/homebrew", "/usr/local"} {
		places = append(places, prefix+"/opt/postgresql@"+version+"/bin")
	}
	for _, root := range roots() {
		places = append(places, filepath.Join(root, "usr/lib/postgresql", version, "bin"))
	}
	dir, err := findDir("", places, "postgres", "initdb")
	if err != nil {
		return "", versionError{"PostgreSQL", version}
	}
	return dir, nil
}

func rabbitDirs(version string) (commands, erlang string, err error) {
	for _, root := range roots() {
		found, _ := filepath.Glob(filepath.Join(root, "usr/lib/rabbitmq/lib", "rabbitmq_server-"+version+"*"))
		for _, dir := range found {
			_, full, _ := strings.Cut(filepath.Base(dir), "-")
			if isVersion(full, version) {
				return filepath.Join(root, "usr/lib/rabbitmq/bin"), filepath.Join(root, "usr/lib/erlang"), nil
			}
		}
	}
	return "", "", versionError{"RabbitMQ", version}
}

// isVersion reports whether a full version, for example "18.6 (Debian 18.6-1)", belongs
// to a version, for example "18". Each version belongs to "".
func isVersion(full, version string) bool {
	rest, ok := strings.CutPrefix(full, version)
	return ok && (version == "" || rest == "" || rest[0] < '0' || rest[0] > '9')
}

// mustBe returns an error if a running server does not have the version that an
// environment variable chooses.
func mustBe(variable, full string) error {
	if version := os.Getenv(variable); !isVersion(full, version) {
		return fmt.Errorf("the server has version %s, but %s is %s", full, variable, version)
	}
	return nil
}

func chosen(version, variable string) string { return cmp.Or(version, os.Getenv(variable)) }

// compose starts the server in a container. The container keeps running after the
// process ends, because other processes may be using it through the default port.
func (s search) compose(ctx context.Context, file string) error {
	if err := dockerAnswers(ctx); err != nil {
		return err
	}
	if file == "" {
		var err error
		if file, err = findComposeFile(); err != nil {
			return err
		}
	}
	output, err := exec.CommandContext(ctx, "docker", "compose", "--file", file, "up", "--detach", "--wait", s.service).CombinedOutput()
	if err != nil {
		return fmt.Errorf("docker compose up %s: %w: %s", s.service, err, output)
	}
	if err := s.ask(ctx, s.url); err != nil {
		return fmt.Errorf("docker compose up %s: %s: %w", s.service, s.address, err)
	}
	return nil
}

// dockerAnswers checks that the docker daemon runs. The docker client may be installed
// without the daemon.
func dockerAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").Run(); err != nil {
		return fmt.Errorf("no docker daemon answers: %w", err)
	}
	return nil
}

// findComposeFile looks in the working directory, and then in the directories above it.
// It returns the deploy/compose.yaml of the first directory that contains both this file
// and a go.mod. A directory with only a go.mod is a nested module.
func findComposeFile() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		file := filepath.Join(dir, "deploy", "compose.yaml")
		_, composeErr := os.Stat(file)
		_, moduleErr := os.Stat(filepath.Join(dir, "go.mod"))
		switch {
		case composeErr == nil && moduleErr == nil:
			return file, nil
		case dir == filepath.Dir(dir):
			return "", errors.New("no deploy/compose.yaml in the working directory or above it")
		}
	}
}
