package main

import (
	"context"
	"sync"
	"time"
)

const (
	streamAhead = 20_000 // messages that wait
	streamBatch = 1000   // of one transaction
)

// stream writes messages.
type stream struct {
	once    sync.Once
	stop    chan struct{}
	ended   chan struct{}
	err     error // set before ended is closed, like starved
	starved int   // number of times that no message waited
}

// keepAhead keeps streamAhead messages waiting. Some wait already when it
// returns.
func (s *scene) keepAhead(ctx context.Context, confirmed func() int64) *stream {
	st := &stream{stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(st.ended)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for written := int64(streamAhead); ; {
			waiting := written - confirmed()
			if waiting <= 0 {
				st.starved++
			}
			if waiting < streamAhead {
				if st.err = s.add(ctx, streamBatch, 0); st.err != nil {
					return
				}
				written += streamBatch
			}
			if waiting > streamAhead-streamBatch {
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

// Close ends the stream.
func (st *stream) Close() error {
	st.once.Do(func() { close(st.stop) })
	<-st.ended
	return st.err
}
