package testkit

import (
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
