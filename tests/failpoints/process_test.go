package failpoints

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/test/kit"
)

// process is a running process with a writer, a forwarder and consumers.
type process struct {
	*exec.Cmd

	point  string
	stdin  io.Closer
	stderr kit.Buffer
	ended  <-chan struct{} // closed when the process has ended
}

// begin starts a process that is killed at the failpoint with the given name. If this
// name is "", the process is not killed. environ contains additional environment
// variables, for example failpoint.Freezes, which makes the process stop at the
// failpoint instead of dying.
func begin(t *testing.T, program string, l life, point string, environ ...string) *process {
	t.Helper()
	told, err := json.Marshal(l)
	kit.OK(t, err)
	p := &process{Cmd: exec.Command(program), point: point}
	p.Env = slices.Concat(os.Environ(), environ, []string{environment + "=" + string(told), failpoint.Variable + "=" + point})
	p.Stderr = &p.stderr
	p.stdin, err = p.StdinPipe()
	kit.OK(t, err)
	p.ended = kit.StartChild(t, p.Cmd)
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
		_ = p.Process.Signal(syscall.SIGQUIT) // it prints its goroutines, and ends
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
	kit.Eventually(t, patience, "the process is stopped at "+p.point, func() bool {
		return p.stderr.String() == failpoint.Reached+name+"\n"
	})
}

// thaw lets a stopped process continue.
func (p *process) thaw(t *testing.T) {
	t.Helper()
	kit.OK(t, p.Process.Signal(syscall.SIGCONT))
}

// stop shuts the process down, and waits until it has ended.
func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.stdin.Close()
	if status := p.end(t); status.ExitStatus() != 0 {
		t.Fatalf("the process ended with %v: %s", p.ProcessState, &p.stderr)
	}
}

// shortScenarios contains the scenarios that run with -short. In the others, the first
// point is reached in nearly the same way, or tests/conformance kills a process at the
// same step of a handler.
var shortScenarios = []string{
	"way", "redelivered", "refused", "dying", "told to end", "crashing", "out of quarantine", "moved", "embedded",
}

// A process is killed at each failpoint, and another process continues. Every committed
// message has its effect once. With -short, a process is killed at the first point of each
// of the shortScenarios.
func TestKilledAt(t *testing.T) {
	t.Parallel()
	program, broker := kit.Program(t, "failpoints"), kit.Rabbit(t)
	for _, s := range slices.Concat(scenarios, operatorScenarios) {
		for i, point := range s.points {
			t.Run(s.name+"/"+point, func(t *testing.T) {
				t.Parallel()
				if i > 0 || !slices.Contains(shortScenarios, s.name) {
					kit.Long(t)
				}
				w := newWorld(t, program, s, broker)
				w.prepare()
				begin(t, program, w.life, point).killed(t)
				if s.after != nil {
					s.after(&w.life)
				}
				w.finish()
				w.audit()
			})
		}
	}
}

func TestEveryPointHasAScenario(t *testing.T) {
	reached, names := map[string]bool{}, map[string]bool{}
	for _, s := range slices.Concat(scenarios, operatorScenarios) {
		names[s.name] = true
		for _, point := range s.points {
			name, _, _ := strings.Cut(point, ":")
			reached[name] = true
			if !slices.Contains(failpoint.Points, name) {
				t.Errorf("%s: there is no failpoint %s", s.name, name)
			}
		}
	}
	for _, name := range shortScenarios {
		if !names[name] {
			t.Errorf("there is no scenario %s", name)
		}
	}
	for _, name := range failpoint.Points {
		if !reached[name] {
			t.Errorf("no process is killed at %s", name)
		}
	}
}

// freezes contains, for each scenario, the points at which a process holds locks that
// another process needs.
var freezes = map[string][]string{
	"way":         {"forwarder/enrolled:2", "forwarder/slots-taken", "forwarder/rows-deleted", "dedup/claimed"},
	"redelivered": {"parked/claimed", "parked/removed"},
	"failing":     {"parked/quarantined"},
	"durable":     {"parked/delivered"},
	"batches":     {"dedup/batch-claimed"},
	"versions":    {"sequence/written"},
	"refused":     {"forwarder/attempt-charged", "forwarder/key-blocked"},
	"dying":       {"forwarder/dead-row-written"},
}

// shortFreezes contains the scenarios that run with -short: a forwarder and a consumer
// hold the locks.
var shortFreezes = []string{"way", "redelivered"}

// Trap 18. A process is stopped in the middle of a transaction, as if its machine were
// paused or its network cut. It continues only after another process has done all the
// work.
//
// With -short it runs two scenarios, at one point each. TestKilledAt runs more.
func TestFrozenAt(t *testing.T) {
	t.Parallel()
	program, broker := kit.Program(t, "failpoints"), kit.Rabbit(t)
	names := map[string]bool{}
	for _, s := range scenarios {
		names[s.name] = true
		for i, point := range freezes[s.name] {
			t.Run(s.name+"/"+point, func(t *testing.T) {
				t.Parallel()
				if i > 0 || !slices.Contains(shortFreezes, s.name) {
					kit.Long(t)
				}
				w := newWorld(t, program, s, broker)
				w.life.Frozen = true
				w.prepare()
				p := begin(t, program, w.life, point, failpoint.Freezes+"=yes")
				p.frozen(t)
				if s.after != nil {
					s.after(&w.life)
				}
				w.finish()
				p.thaw(t)
				p.stop(t)
				w.finish() // the frozen process may have nacked messages, or handled some by mistake
				w.audit()
			})
		}
	}
	for name := range freezes {
		if !names[name] {
			t.Errorf("there is no scenario %s", name)
		}
	}
}
