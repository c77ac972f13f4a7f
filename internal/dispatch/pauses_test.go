package dispatch

// pause simulates an operator.
func (w *world) pause(p Pauses) {
	w.tracef("pauses %+v", p)
	w.pauses, w.heeds = p, false
	w.changes++
}
