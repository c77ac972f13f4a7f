package main

import (
	"context"
	"sync"
	"time"
)

const (
	streamAhead = 20_000 // messages that always wait
	streamBatch = 1000   // messages per transaction
)

// stream writes messages to the outbox during a measurement.
type stream struct {
	once    sync.Once
	stop    chan struct{}
	ended   chan struct{}
	err     error // err and starved are set before ended is closed
	starved int   // how often no message waited
}

// keepAhead starts a goroutine that writes new messages whenever fewer than streamAhead
// wait. The caller has stored the first streamAhead messages.
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

// Close stops the goroutine, and returns its error.
func (st *stream) Close() error {
	st.once.Do(func() { close(st.stop) })
	<-st.ended
	return st.err
}
