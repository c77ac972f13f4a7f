package forwarder_test

import (
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
)

// logs is a logger that remembers.
type logs struct {
	mu  sync.Mutex
	all []string
}

func (l *logs) add(level, text string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := level + " " + text
	for name, value := range fields {
		line += fmt.Sprintf(" %s=%v", name, value)
	}
	if err != nil {
		line += " err=" + err.Error()
	}
	l.all = append(l.all, line)
}

func (l *logs) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.all...)
}

// has says whether one line has all parts.
func (l *logs) has(parts ...string) bool { return l.count(parts...) > 0 }

func (l *logs) count(parts ...string) int {
	n := 0
	for _, line := range l.lines() {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			n++
		}
	}
	return n
}

func (l *logs) Error(text string, err error, fields watermill.LogFields) {
	l.add("ERROR", text, err, fields)
}
func (l *logs) Info(text string, fields watermill.LogFields)  { l.add("INFO", text, nil, fields) }
func (l *logs) Debug(text string, fields watermill.LogFields) { l.add("DEBUG", text, nil, fields) }
func (l *logs) Trace(text string, fields watermill.LogFields) { l.add("TRACE", text, nil, fields) }
func (l *logs) With(watermill.LogFields) watermill.LoggerAdapter {
	return l
}
