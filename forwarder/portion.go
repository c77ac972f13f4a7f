package forwarder

// portion is how much is asked of the database at once. What could not be done
// in the time that there is for it may be possible in smaller parts: after each
// failure half as much is asked for, after each success twice as much again.
type portion struct {
	halved int
}

func (p *portion) of(n int) int { return max(1, n>>p.halved) }

func (p *portion) did(worked bool) {
	const enough = 12
	if worked {
		p.halved = max(0, p.halved-1)
	} else {
		p.halved = min(enough, p.halved+1)
	}
}
