package kit

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
)

// Logger returns a logger that writes to the test's log. After the end of the test it
// drops all lines, because t.Log would panic.
func Logger(t testing.TB) watermill.LoggerAdapter {
	l := &logger{test: &loggedTest{t: t}}
	t.Cleanup(l.test.end)
	return l
}

type logger struct {
	test   *loggedTest
	fields watermill.LogFields
}

type loggedTest struct {
	mu sync.Mutex
	t  testing.TB // nil after the end of the test
}

func (l *loggedTest) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t = nil
}

func (l *loggedTest) log(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Log(line)
	}
}

func (l *logger) write(level, message string, err error, fields watermill.LogFields) {
	fields = l.fields.Add(fields)
	line := []string{level, message}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		line = append(line, fmt.Sprintf("%s=%v", name, fields[name]))
	}
	if err != nil {
		line = append(line, fmt.Sprintf("err=%q", err))
	}
	l.test.log(strings.Join(line, " "))
}

func (l *logger) Error(message string, err error, fields watermill.LogFields) {
	l.write("ERROR", message, err, fields)
}

func (l *logger) Info(message string, fields watermill.LogFields) {
	l.write("INFO", message, nil, fields)
}

func (l *logger) Debug(message string, fields watermill.LogFields) {
	l.write("DEBUG", message, nil, fields)
}

func (l *logger) Trace(message string, fields watermill.LogFields) {
	l.write("TRACE", message, nil, fields)
}

func (l *logger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return &logger{test: l.test, fields: l.fields.Add(fields)}
}

// Logs is a watermill.LoggerAdapter that records its lines. The zero value is ready for
// use.
type Logs struct {
	mu  sync.Mutex
	all []string
}

func (l *Logs) add(level, text string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var line strings.Builder
	line.WriteString(level + " " + text)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		fmt.Fprintf(&line, " %s=%v", name, fields[name])
	}
	if err != nil {
		line.WriteString(" err=" + err.Error())
	}
	l.all = append(l.all, line.String())
}

// Lines returns the recorded lines. A line consists of level, text, fields in the order
// of their names, and error.
func (l *Logs) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.all...)
}

// CountLine returns the number of lines that are equal to line.
func (l *Logs) CountLine(line string) int {
	n := 0
	for _, recorded := range l.Lines() {
		if recorded == line {
			n++
		}
	}
	return n
}

// Has reports whether at least one line contains all parts.
func (l *Logs) Has(parts ...string) bool { return l.Count(parts...) > 0 }

// Count returns the number of lines that contain all parts.
func (l *Logs) Count(parts ...string) int {
	n := 0
	for _, line := range l.Lines() {
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

// Error implements watermill.LoggerAdapter.
func (l *Logs) Error(text string, err error, fields watermill.LogFields) {
	l.add("ERROR", text, err, fields)
}

// Info implements watermill.LoggerAdapter.
func (l *Logs) Info(text string, fields watermill.LogFields) { l.add("INFO", text, nil, fields) }

// Debug implements watermill.LoggerAdapter.
func (l *Logs) Debug(text string, fields watermill.LogFields) { l.add("DEBUG", text, nil, fields) }

// Trace implements watermill.LoggerAdapter.
func (l *Logs) Trace(text string, fields watermill.LogFields) { l.add("TRACE", text, nil, fields) }

// With returns l. The fields are not recorded.
func (l *Logs) With(watermill.LogFields) watermill.LoggerAdapter {
	return l
}

// Buffer is a bytes.Buffer that several goroutines may use.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns the written text. A nil Buffer returns "".
func (b *Buffer) String() string {
	if b == nil {
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
