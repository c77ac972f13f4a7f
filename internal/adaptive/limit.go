// Package adaptive shrinks batches after failures and grows them after successes.
package adaptive

// Limit is how much is asked for. What could not be done in the time that
// there is for it may be possible in smaller parts: after each failure half as
// much is asked for, after each success twice as much again. The zero value asks
// for everything.
type Limit struct {
	halved int
}

// Of returns how many of n to ask for, at least one.
func (p *Limit) Of(n int) int { return max(1, n>>p.halved) }

// Did notes whether that worked.
func (p *Limit) Did(worked bool) {
	const enough = 12
	if worked {
		p.halved = max(0, p.halved-1)
	} else {
		p.halved = min(enough, p.halved+1)
	}
}
