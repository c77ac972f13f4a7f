package retry

import "time"

// SetOneTry has a try of what must not be given up lightly end after d.
func (r *Retries) SetOneTry(d time.Duration) { r.patience.OneTry = d }

// SetSeenEvery has subscriptions say that often that they run.
func (r *Retries) SetSeenEvery(d time.Duration) { r.registerEvery = d }

// SuspectWaits says that a suspect has asked the rest of the process to make
// room.
func SuspectWaits() bool {
	processGate.mu.Lock()
	defer processGate.mu.Unlock()
	return processGate.waiting > 0
}
