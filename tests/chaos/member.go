package main

import (
	"bufio"
	"bytes"
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

// member is a process that is started again whenever it ends, like a service. Each of
// these processes is called a life of the member.
type member struct {
	life

	dir     string
	base    string // prefix of each life's name
	program string // path of the binary
	old     string // path of the binary of an earlier release, or ""

	driver int // the number of the first life's driver, see next

	mu     sync.Mutex
	lives  int
	proc   *process
	before map[string]int64 // sum of the counts of earlier lives
	exits  map[int]int64    // number of exits by exit status; -9 is SIGKILL
	down   bool             // the process is not started again
	paused bool             // writers only: the next life starts paused
	aged   bool             // the next life runs the earlier release
	odd    []string         // exits that no fault explains
	wanted bool             // the test itself ended the process, so its exit is not odd

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

// next returns the driver of the current life. The lives of a member use four drivers in
// rotation: lib/pq, lib/pq with lazytx, pgx, and pgx with lazytx.
func (m *member) next() (lazy, pgx bool) {
	n := m.driver + m.lives - 1
	return n%2 == 1, n/2%2 == 1
}

// begin starts the next life. The caller holds m.mu.
func (m *member) begin() error {
	m.lives++
	l := m.life
	l.Name = fmt.Sprintf("%s-%d", m.base, m.lives)
	l.Lazy, l.Pgx = m.next()
	if l.Role == writing {
		l.Journal = filepath.Join(m.dir, l.Name+".journal")
	}
	told, err := json.Marshal(l)
	if err != nil {
		return err
	}
	binary := m.program
	if m.aged {
		binary = m.old
	}
	log, err := os.OpenFile(m.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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

// attend reads the beats of a process until it ends, and starts the next life.
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
	_ = p.cmd.Wait() // the result is in ProcessState
	close(p.gone)

	m.mu.Lock()
	defer m.mu.Unlock()
	for name, n := range p.last.Counts {
		m.before[name] += n
	}
	status := ended(p.cmd.ProcessState)
	m.exits[status]++
	if status != exitStatus && status != refusedStatus && !m.wanted {
		m.odd = append(m.odd, fmt.Sprintf("%s-%d ended with %v: %s", m.base, m.lives, p.cmd.ProcessState, m.lastWords()))
	}
	if !m.down {
		if err := m.begin(); err != nil {
			m.odd = append(m.odd, fmt.Sprintf("%s does not start: %v", m.base, err))
		}
	}
}

func (m *member) log() string { return filepath.Join(m.dir, m.base+".log") }

// lastWords returns the last line of the member's log, because the log is deleted at the end of the run.
func (m *member) lastWords() string {
	text, err := os.ReadFile(m.log())
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}

// ended returns the exit status of a process, or the negative number of the signal that ended it.
func ended(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return -int(status.Signal())
	}
	return state.ExitCode()
}

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

func (m *member) signal(s syscall.Signal) *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s == syscall.SIGKILL {
		m.wanted = true
	}
	_ = m.proc.cmd.Process.Signal(s)
	return m.proc
}

// renew makes the process end gracefully, and returns it. The method attend then starts
// the next process, unless the member is stopped.
func (m *member) renew() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = true
	_ = m.proc.stdin.Close()
	return m.proc
}

// age restarts the member: with the earlier release if aged is true, and
// otherwise with the current release. The returned function takes the name of a count. It
// returns this count of the new life, or zero if the new life has not begun.
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

// stop ends the process and does not start it again. If ctx ends first, stop kills the
// process, and reports this.
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
	case <-m.proc.gone: // its counts are already contained in before
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
