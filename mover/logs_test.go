package mover_test

import (
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
)

// lines is a logger that remembers what was said.
type lines struct {
	watermill.NopLogger

	mu  sync.Mutex
	all []string
}

func (l *lines) add(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, text)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.all, text)
}

func (l *lines) Error(text string, _ error, _ watermill.LogFields) { l.add(text) }
func (l *lines) Info(text string, _ watermill.LogFields)           { l.add(text) }
