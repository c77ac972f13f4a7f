package retry

// SuspectWaits says that a suspect has asked the rest of the process to make
// room.
func SuspectWaits() bool {
	inProcess.mu.Lock()
	defer inProcess.mu.Unlock()
	return inProcess.asking > 0
}
