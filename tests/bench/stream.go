package main

import (
	"context"
	"sync"
	"time"
)

// streamParts decides how many messages keepAhead writes in one transaction. If keepAhead
// must keep 2,000 messages waiting, a transaction writes 2,000/streamParts messages.
const streamParts = 20

// stream writes messages to the outbox during a measurement.
type stream struct {
	once    sync.Once
	stop    chan struct{}
	ended   chan struct{}
	err     error // err and starved are set before ended is closed
	starved int   // number of checks that found no waiting message
}

// keepAhead starts a goroutine that writes new messages whenever fewer messages than the
// parameter ahead wait in the outbox. The caller must have stored this number of
// messages before. The parameter confirmed is a function that returns the number of
// messages that were confirmed so far.
func (s *scene) keepAhead(ctx context.Context, ahead int, confirmed func() int64) *stream {
	st := &stream{stop: make(chan struct{}), ended: make(chan struct{})}
	batch := max(1, ahead/streamParts)
	go func() {
		defer close(st.ended)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for written := ahead; ; {
			waiting := written - int(confirmed())
			if waiting <= 0 {
				st.starved++
			}
			if waiting < ahead {
				if st.err = s.add(ctx, batch, 0); st.err != nil {
					return
				}
				written += batch
			}
			if waiting > ahead-batch {
				<-tick.C
			}
			select {
			case <-st.stop:
				return
			default:
			}
		}
	}()
	return st
}

// Close stops the goroutine, and returns its error.
func (st *stream) Close() error {
	st.once.Do(func() { close(st.stop) })
	<-st.ended
	return st.err
}
