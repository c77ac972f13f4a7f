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

// member is a process that is restarted when it ends, like a service.
type member struct {
	life

	dir  string
	base string // prefix of the names of its lives
	old  string // the binary of an earlier release, or ""

	mu     sync.Mutex
	lives  int
	proc   *process
	before map[string]int64 // counts of earlier lives
	exits  map[int]int64    // by exit status; -9 for SIGKILL
	down   bool             // it will not be restarted
	paused bool             // a writer starts paused
	aged   bool             // the next life uses the earlier release
	odd    []string         // unexplained exits
	wanted bool             // this process has ended it

	running sync.WaitGroup
}

// process is one life of a member.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	gone  chan struct{} // closed when the process has ended

	last  beat
	heard time.Time
}

func (m *member) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = false
	return m.begin()
}

// begin starts a life. The caller holds the lock.
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
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not reach the children
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

// attend reads the output of a process until it ends, and starts the next life.
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
	_ = p.cmd.Wait() // ProcessState has the result
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

// ended returns the exit status of a process, or minus the signal that ended
// it.
func ended(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return -int(status.Signal())
	}
	return state.ExitCode()
}

// send sends an order. The caller holds the lock.
func (m *member) send(o order) {
	line, err := json.Marshal(o)
	if err == nil {
		_, _ = m.proc.stdin.Write(append(line, '\n')) // the process may have ended
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

// renew lets the process end by itself, and starts the next one.
func (m *member) renew() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = true
	_ = m.proc.stdin.Close()
	return m.proc
}

// age selects the release of the next life: the earlier or the current one. It
// returns a function for the counts of that life.
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

// stop ends the member without a restart. It reports whether it had to kill the
// process.
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
	case <-m.proc.gone: // its counts are in before already
	default:
		n += m.proc.last.Counts[name]
	}
	return n
}

// silence returns the time since the last beat of the process.
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
