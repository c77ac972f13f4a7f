package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

func (b *bench) memories(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	peak := series{
		id: "memory", unit: megabytes,
		what: fmt.Sprintf("peak resident memory of a process that drains %d, %s", b.backlog, kind),
	}
	err := b.turns(ctx, single(&peak, func(ctx context.Context) (float64, error) { return b.drainedByChild(ctx, kind, b.backlog) }))
	if err != nil {
		return nil, err
	}
	return []row{peak.atMost(100)}, nil
}

// drainedByChild drains an outbox in a child process. It returns the peak memory of
// that process in megabytes.
func (b *bench) drainedByChild(ctx context.Context, kind string, messages int) (_ float64, err error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fill(ctx, messages, 0); err != nil {
		return 0, err
	}
	peak, err := runDrainer(ctx, drainerTask{PgDSN: s.db.dsn, AmqpURL: b.amqpURL, Queue: s.queue.name, Messages: messages})
	if err != nil {
		return 0, err
	}
	if err := s.empty(ctx); err != nil {
		return 0, err
	}
	return float64(peak) / 1e6, s.queue.awaitMessages(ctx, messages+1)
}

// drainerVariable is the environment variable that contains the task of a child process
// as JSON. A process with this variable drains an outbox.
const drainerVariable = "ONCE_BENCH_DRAINER"

type drainerTask struct {
	PgDSN    string `json:"pg_dsn"`
	AmqpURL  string `json:"amqp_url"`
	Queue    string `json:"queue"`
	Messages int    `json:"messages"`
}

// runDrainer runs this program as a child process, and returns the peak of its resident
// memory in bytes.
func runDrainer(ctx context.Context, task drainerTask) (peak int64, err error) {
	encoded, err := json.Marshal(task)
	if err != nil {
		return 0, err
	}
	path, err := os.Executable()
	if err != nil {
		return 0, err
	}
	var out bytes.Buffer
	child := exec.CommandContext(ctx, path)
	child.Env = append(os.Environ(), drainerVariable+"="+string(encoded))
	child.Stdout, child.Stderr = &out, os.Stderr
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.WaitDelay = 20 * time.Second
	if err := child.Run(); err != nil {
		return 0, fmt.Errorf("draining process: %w", err)
	}
	return strconv.ParseInt(out.String(), 10, 64)
}

// drainer runs in the child process. It drains the outbox that the environment variable
// describes, and prints the peak memory of the process in bytes.
func drainer(ctx context.Context, out io.Writer) (err error) {
	var task drainerTask
	if err := json.Unmarshal([]byte(os.Getenv(drainerVariable)), &task); err != nil {
		return fmt.Errorf("%s is for the process that this command starts, and must not be set: %w; %w", drainerVariable, err, errUsage)
	}
	if err := task.drain(ctx); err != nil {
		return err
	}
	peak, err := peakMemory()
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(out, peak)
	return err
}

func (t drainerTask) drain(ctx context.Context) (err error) {
	db, err := open(t.PgDSN)
	if err != nil {
		return err
	}
	defer closing(db, &err)
	q := queue{url: t.AmqpURL, name: t.Queue}
	f, err := forward(db, q.config(), q.name, t.Messages)
	if err != nil {
		return err
	}
	defer closing(f, &err)
	f.start(ctx)
	return f.await(ctx)
}

var highWater = regexp.MustCompile(`(?m)^VmHWM:\s*(\d+) kB$`)

// peakMemory returns the peak resident memory of this process, in bytes.
func peakMemory() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("resident memory is known on Linux only: %w", err)
	}
	match := highWater.FindSubmatch(status)
	if match == nil {
		return 0, errors.New("/proc/self/status has no VmHWM")
	}
	kilobytes, err := strconv.ParseInt(string(match[1]), 10, 64)
	return kilobytes * 1024, err
}
