package retry

import "time"

// SetOneTry sets the timeout for one try of a database operation that is repeated.
func (r *Retries) SetOneTry(d time.Duration) { r.patience.OneTry = d }

// SetRegisterEvery sets the interval at which subscriptions record that they run.
func (r *Retries) SetRegisterEvery(d time.Duration) { r.registerEvery = d }

// IsolationRequested reports whether a crashed message waits to run alone.
func IsolationRequested() bool {
	processGate.mu.Lock()
	defer processGate.mu.Unlock()
	return len(processGate.requests) > 0
}
