package forwarding

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
	l.all = append(l.all, fmt.Sprint(level, " ", text, " ", fields, " ", err))
}

func (l *logs) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.all...)
}

// count returns the number of lines that have the part.
func (l *logs) count(part string) int {
	n := 0
	for _, line := range l.lines() {
		if strings.Contains(line, part) {
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
