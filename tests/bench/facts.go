package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// machine describes the machine and the servers that the figures depend on.
type machine struct {
	cores    int
	fsync    time.Duration
	postgres string
	settings [3]string // settings of PostgreSQL that decide the cost of a commit
	rabbit   string
	options  options
}

func facts(ctx context.Context, o options) (machine, error) {
	m := machine{cores: runtime.NumCPU(), options: o}
	db, err := open(o.pgDSN)
	if err != nil {
		return m, err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, `SHOW server_version`).Scan(&m.postgres); err != nil {
		return m, fmt.Errorf("PostgreSQL: %w", err)
	}
	err = db.QueryRowContext(ctx,
		`SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers')`).
		Scan(&m.settings[0], &m.settings[1], &m.settings[2])
	if err != nil {
		return m, fmt.Errorf("PostgreSQL: %w", err)
	}
	conn, err := amqp.Dial(o.amqpURL)
	if err != nil {
		return m, fmt.Errorf("RabbitMQ: %w", err)
	}
	defer conn.Close()
	m.rabbit, _ = conn.Properties["version"].(string)
	m.fsync, err = fsyncTime()
	return m, err
}

// fsyncTime returns the median time that writing and syncing 8 kB takes.
func fsyncTime() (time.Duration, error) {
	f, err := os.CreateTemp("", "once-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 8192)
	times := make([]time.Duration, 0, 100)
	for range cap(times) {
		start := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func (m machine) print(w io.Writer) {
	o := m.options
	fmt.Fprintf(w, "%d cores, fsync %v, %s, PostgreSQL %s (fsync %s, synchronous_commit %s, shared_buffers %s), RabbitMQ %s\n",
		m.cores, m.fsync.Round(time.Microsecond), runtime.Version(), m.postgres, m.settings[0], m.settings[1], m.settings[2], m.rabbit)
	fmt.Fprintf(w, "queues: %s; messages: %d bytes, %d headers, persistent; runs in turns: %d, of %d messages (%d if one at a time)\n",
		strings.Join(o.kinds, " and "), bodySize, headerCount, o.runs, o.messages, o.slow)
}
