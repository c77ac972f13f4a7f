package failpoints

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/testkit"
)

// process is a running process with a writer, a forwarder and consumers.
type process struct {
	*exec.Cmd

	point  string
	stdin  io.Closer
	stderr buffer
	ended  <-chan struct{} // closed when the process has ended
}

// buffer is a buffer that can be read while another goroutine writes to it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// begin starts a process that is killed at the failpoint with the given name. If this
// name is "", the process is not killed. environ contains additional environment
// variables, for example failpoint.Freezes, which makes the process stop at the
// failpoint instead of dying.
func begin(t *testing.T, program string, l life, point string, environ ...string) *process {
	t.Helper()
	told, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(program), point: point}
	p.Env = slices.Concat(os.Environ(), environ, []string{environment + "=" + string(told), failpoint.Variable + "=" + point})
	p.Stderr = &p.stderr
	if p.stdin, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	p.ended = testkit.StartChild(t, p.Cmd)
	return p
}

// patience is how long the test waits for a process. It is long, because the machine
// may be busy.
const patience = 2 * time.Minute

// end waits until the process has ended.
func (p *process) end(t *testing.T) syscall.WaitStatus {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.Process.Kill()
		<-p.ended
		t.Fatalf("the process did not end, it never reached %q: %s", p.point, &p.stderr)
	}
	status, _ := p.ProcessState.Sys().(syscall.WaitStatus)
	return status
}

// killed waits until the process has been killed at its failpoint.
func (p *process) killed(t *testing.T) {
	t.Helper()
	status := p.end(t)
	name, _, _ := strings.Cut(p.point, ":")
	if !status.Signaled() || status.Signal() != syscall.SIGKILL || p.stderr.String() != failpoint.Reached+name+"\n" {
		t.Fatalf("the process was not killed at %s, it ended with %v: %s", p.point, p.ProcessState, &p.stderr)
	}
}

// frozen waits until the process has been stopped at its failpoint.
func (p *process) frozen(t *testing.T) {
	t.Helper()
	name, _, _ := strings.Cut(p.point, ":")
	testkit.Eventually(t, patience, "the process is stopped at "+p.point, func() bool {
		return p.stderr.String() == failpoint.Reached+name+"\n"
	})
}

// thaw lets a stopped process continue.
func (p *process) thaw(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// stop shuts the process down, and waits until it has ended.
func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.stdin.Close()
	if status := p.end(t); status.ExitStatus() != 0 {
		t.Fatalf("the process ended with %v: %s", p.ProcessState, &p.stderr)
	}
}
