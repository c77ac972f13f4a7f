package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processor contains the processor time that processes have used since their start.
type processor struct {
	postgres time.Duration // by the server's processes for one database
	own      time.Duration // by this process
}

func (p processor) minus(q processor) processor {
	return processor{p.postgres - q.postgres, p.own - q.own}
}

func (p processor) plus(q processor) processor {
	return processor{p.postgres + q.postgres, p.own + q.own}
}

// processor returns the processor time of the sessions in the database, and of this
// process. The result ok is false if PostgreSQL runs on another host, or the system has
// no /proc.
func (d *database) processor(ctx context.Context) (used processor, ok bool, err error) {
	rows, err := d.admin.QueryContext(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'`, d.name)
	if err != nil {
		return used, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			return used, false, err
		}
		one, ok := timeOf(pid)
		if !ok {
			return used, false, nil
		}
		used.postgres += one
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return used, false, err
	}
	used.own = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	return used, true, rows.Err()
}

// timeOf returns the processor time of a process of PostgreSQL.
func timeOf(pid int) (time.Duration, bool) {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || !strings.HasPrefix(string(name), "postgres") {
		return 0, false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid)) // schedstat counts nanoseconds, but stat only hundredths of a second
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(stat), " ")
	nanoseconds, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(nanoseconds), err == nil
}
