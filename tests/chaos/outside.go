package main

import (
	"fmt"
	"maps"
	"sync"
)

// outside records the bodies of messages that were published directly to the broker, and
// must go to quarantine.
type outside struct {
	mu     sync.Mutex
	count  int
	bodies map[string]string // key: body; value: reason for the quarantine
}

func newOutside() *outside { return &outside{bodies: make(map[string]string)} }

// add returns a new unique body, and records the reason for its quarantine.
func (o *outside) add(wrong string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count++
	body := append([]byte(fmt.Sprintf("outside %d ", o.count)), payload(fmt.Sprint("outside", o.count), plain)...)
	o.bodies[string(body)] = wrong
	return body
}

// all returns a copy of the bodies with their reasons.
func (o *outside) all() map[string]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.bodies)
}
