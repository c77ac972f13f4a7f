package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cost is the processor time of one message, in microseconds: by PostgreSQL, the broker
// and this process. Unlike a rate, it can be compared between machines that are more or
// less busy. A negative value is unknown, because the server runs on another machine.
type cost struct {
	Postgres float64 `json:"postgres"`
	Broker   float64 `json:"broker"`
	Go       float64 `json:"go"`
}

func (c cost) String() string {
	part := func(value float64) string {
		if value < 0 {
			return "?"
		}
		return fmt.Sprintf("%.0f", value)
	}
	return part(c.Postgres) + "/" + part(c.Broker) + "/" + part(c.Go)
}

// medianCost returns the median of each part, or nil if there is no cost.
func medianCost(all []cost) *cost {
	if len(all) == 0 {
		return nil
	}
	of := func(part func(cost) float64) float64 {
		var s series
		for _, c := range all {
			s.values = append(s.values, part(c))
		}
		return s.median()
	}
	return &cost{
		Postgres: of(func(c cost) float64 { return c.Postgres }),
		Broker:   of(func(c cost) float64 { return c.Broker }),
		Go:       of(func(c cost) float64 { return c.Go }),
	}
}

// serverProcesses contains the processes of the servers. A process is 0 if it does not run on
// this machine.
type serverProcesses struct{ postgres, broker int }

// findServers finds the servers that listen on the ports of pgDSN and amqpURL.
func findServers(pgDSN, amqpURL string) serverProcesses {
	return serverProcesses{postgres: listener(pgDSN, "postgres"), broker: listener(amqpURL, "beam.smp")}
}

// listener returns the process with the given name that listens on the port of an
// address, or 0.
func listener(address, name string) int {
	parsed, err := url.Parse(address)
	if err != nil {
		return 0
	}
	defaults := map[string]string{"postgres": "5432", "postgresql": "5432", "amqp": "5672"}
	port := parsed.Port()
	if port == "" {
		port = defaults[parsed.Scheme]
	}
	sockets := listening(port)
	found, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range found {
		if text, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(text)) != name {
			continue
		}
		open, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "fd", "*"))
		for _, one := range open {
			if to, err := os.Readlink(one); err == nil && slices.Contains(sockets, to) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				return pid
			}
		}
	}
	return 0
}

// listening returns the sockets that listen on a port, in the form socket:[inode].
func listening(port string) (sockets []string) {
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil
	}
	const isListening = "0A"
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(table)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if f := strings.Fields(lines.Text()); len(f) > 9 && f[3] == isListening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", number)) {
				sockets = append(sockets, "socket:["+f[9]+"]")
			}
		}
		_ = file.Close()
	}
	return sockets
}

// used returns the processor time that the servers and this process have used since their
// start. A time is negative if it is unknown.
func (s serverProcesses) used() (used [3]time.Duration) {
	used[0], used[1] = family(s.postgres), family(s.broker)
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err == nil {
		used[2] = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	}
	return used
}

// family returns the processor time of a process, of its children, and of the children
// that have ended.
func family(pid int) time.Duration {
	if pid == 0 {
		return -1
	}
	var ticks int64
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		parent := filepath.Base(filepath.Dir(name)) == strconv.Itoa(pid)
		if len(f) < 15 || !parent && f[1] != strconv.Itoa(pid) {
			continue
		}
		for i, field := range f[11:15] { // utime, stime, and those of the children that have ended
			if n, err := strconv.ParseInt(field, 10, 64); err == nil && (parent || i < 2) {
				ticks += n
			}
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// costMeter collects the cost of one measurement.
type costMeter struct {
	serverProcesses

	spent    [3]time.Duration
	messages int
}

type costKey struct{}

// measureCost begins to measure the processor time of a measurement that [bench.turns] runs.
// The caller must call the returned function at the end, with the number of messages.
func measureCost(ctx context.Context) (end func(messages int)) {
	w, ok := ctx.Value(costKey{}).(*costMeter)
	if !ok {
		return func(int) {}
	}
	before := w.used()
	return func(messages int) {
		w.messages += messages
		for i, now := range w.used() {
			if now < 0 || w.spent[i] < 0 {
				w.spent[i] = -1
				continue
			}
			w.spent[i] += now - before[i]
		}
	}
}

func (w *costMeter) cost() (c cost, ok bool) {
	if w.messages == 0 {
		return c, false
	}
	of := func(i int) float64 {
		if w.spent[i] < 0 {
			return -1
		}
		return float64(w.spent[i].Nanoseconds()) / 1000 / float64(w.messages)
	}
	return cost{Postgres: of(0), Broker: of(1), Go: of(2)}, true
}
