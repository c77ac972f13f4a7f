package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// member is a process that is started again when it ends, as a service is.
type member struct {
	life

	dir  string
	base string // its lives' names begin with it
	old  string // the binary of an earlier release, which it may be told to use

	mu     sync.Mutex
	lives  int
	proc   *process
	before map[string]int64 // counts of lives that are over
	exits  map[int]int64    // by status; -9 is killed by SIGKILL
	down   bool             // it is not to be started again
	paused bool             // what a writer is told when it begins
	aged   bool             // the next life is of the earlier release
	odd    []string         // ends that nothing explains
	wanted bool             // its end is our doing

	running sync.WaitGroup
}

// process is one life of a member.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	gone  chan struct{} // closed when it was waited for

	last  beat
	heard time.Time
}

func (m *member) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = false
	return m.begin()
}

// begin begins a life. The lock is held.
func (m *member) begin() error {
	m.lives++
	l := m.life
	l.Name = fmt.Sprintf("%s-%d", m.base, m.lives)
	if l.Role == writing {
		l.Journal = filepath.Join(m.dir, l.Name+".journal")
	}
	told, err := json.Marshal(l)
	if err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	if m.aged {
		binary = m.old
	}
	log, err := os.OpenFile(filepath.Join(m.dir, m.base+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p := &process{cmd: exec.Command(binary), gone: make(chan struct{}), heard: time.Now()}
	p.cmd.Env = append(os.Environ(), environment+"="+string(told))
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	m.proc, m.wanted = p, false
	m.running.Go(func() { m.attend(p, stdout) })
	if l.Role == writing && !m.paused {
		m.send(order{Do: doResume})
	}
	return nil
}

// attend listens to a process until it ends, and begins the next life.
func (m *member) attend(p *process, stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var b beat
		if json.Unmarshal(lines.Bytes(), &b) == nil {
			m.mu.Lock()
			p.last, p.heard = b, time.Now()
			m.mu.Unlock()
		}
	}
	_ = p.cmd.Wait() // that it ended counts, and how
	close(p.gone)

	m.mu.Lock()
	defer m.mu.Unlock()
	for name, n := range p.last.Counts {
		m.before[name] += n
	}
	status := ended(p.cmd.ProcessState)
	m.exits[status]++
	if status != exitStatus && !m.wanted {
		m.odd = append(m.odd, fmt.Sprintf("%s-%d ended with %v", m.base, m.lives, p.cmd.ProcessState))
	}
	if !m.down {
		if err := m.begin(); err != nil {
			m.odd = append(m.odd, fmt.Sprintf("%s does not start: %v", m.base, err))
		}
	}
}

// ended is the status of a process, or minus the signal that ended it.
func ended(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return -int(status.Signal())
	}
	return state.ExitCode()
}

// send gives an order. The lock is held.
func (m *member) send(o order) {
	line, err := json.Marshal(o)
	if err == nil {
		_, _ = m.proc.stdin.Write(append(line, '\n')) // one that is gone hears nothing
	}
}

func (m *member) tell(o order) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch o.Do {
	case doPause:
		m.paused = true
	case doResume:
		m.paused = false
	}
	m.send(o)
}

// signal sends a signal, and returns the process that got it.
func (m *member) signal(s syscall.Signal) *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s == syscall.SIGKILL {
		m.wanted = true
	}
	_ = m.proc.cmd.Process.Signal(s)
	return m.proc
}

// renew has the process end by itself, and the next one begin.
func (m *member) renew() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = true
	_ = m.proc.stdin.Close()
	return m.proc
}

// age has the next life be of the earlier release, or of this one. What it
// returns is what that life has counted so far.
func (m *member) age(aged bool) (counted func(name string) int64) {
	m.mu.Lock()
	m.aged = aged
	lives := m.lives
	m.mu.Unlock()
	m.renew()
	return func(name string) int64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.lives == lives {
			return 0
		}
		return m.proc.last.Counts[name]
	}
}

// stop has it end for good. It says that it had to be killed.
func (m *member) stop(ctx context.Context) (killed bool) {
	m.mu.Lock()
	m.down = true
	m.mu.Unlock()
	p := m.renew()
	select {
	case <-p.gone:
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		killed = true
	}
	m.running.Wait()
	return killed
}

func (m *member) count(name string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.before[name]
	select {
	case <-m.proc.gone: // it is in before already
	default:
		n += m.proc.last.Counts[name]
	}
	return n
}

// silence is how long nothing was heard.
func (m *member) silence() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.proc.heard)
}

func (m *member) beat() beat {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc.last
}

func (m *member) exited(status int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exits[status]
}

func (m *member) oddities() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.odd
}
