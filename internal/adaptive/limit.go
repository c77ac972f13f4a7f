// Package adaptive shrinks batches after failures and grows them after successes.
package adaptive

// Limit limits the size of batches. A batch that fails, for example because of a
// timeout, may succeed in smaller parts. Each failure halves the limit. Each success
// doubles it, up to the full size. The zero value allows the full size.
type Limit struct {
	halvings int
}

// Of returns how many of n items to process at once. The result is at least 1.
func (l *Limit) Of(n int) int { return max(1, n>>l.halvings) }

// Did updates the limit after a batch has succeeded or failed.
func (l *Limit) Did(succeeded bool) {
	const maxHalvings = 12
	if succeeded {
		l.halvings = max(0, l.halvings-1)
	} else {
		l.halvings = min(maxHalvings, l.halvings+1)
	}
}
