package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

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
// It returns the compose.yaml of the first directory that contains both a compose.yaml
// and a go.mod. A directory with only a go.mod is a nested module.
func findComposeFile() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		file := filepath.Join(dir, "compose.yaml")
		_, composeErr := os.Stat(file)
		_, moduleErr := os.Stat(filepath.Join(dir, "go.mod"))
		switch {
		case composeErr == nil && moduleErr == nil:
			return file, nil
		case dir == filepath.Dir(dir):
			return "", errors.New("no compose.yaml in the working directory or above it")
		}
	}
}
