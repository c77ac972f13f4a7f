package main

import (
	"fmt"
	"maps"
	"sync"
)

// outside records the bodies of messages that do not come from the outbox and
// must end in quarantine.
type outside struct {
	mu     sync.Mutex
	count  int
	bodies map[string]string // body to the reason for its quarantine
}

func newOutside() *outside { return &outside{bodies: make(map[string]string)} }

// add returns a body that no other message has.
func (o *outside) add(wrong string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count++
	body := append([]byte(fmt.Sprintf("outside %d ", o.count)), payload(fmt.Sprint("outside", o.count), plain)...)
	o.bodies[string(body)] = wrong
	return body
}

// all returns a copy.
func (o *outside) all() map[string]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.bodies)
}
