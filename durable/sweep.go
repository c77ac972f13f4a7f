package durable

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

const (
	// The pause between two sweeps is a tenth of KeepHandled. It is at least shortestPause
	// and at most longestPause.
	shortestPause = time.Second
	longestPause  = 10 * time.Minute

	sweepBatch   = 2000        // maximum number of rows that one transaction removes
	sweepTimeout = time.Minute // timeout of one transaction
)

// sweepAll removes the rows that are older than KeepHandled, again and again until the
// subscription ends. Several instances may sweep at the same time, and do not wait for
// each other.
func (s *stream) sweepAll() {
	tick := time.NewTicker(min(max(s.config.KeepHandled/10, shortestPause), longestPause))
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-s.ended:
			return
		}
		err := s.sweep()
		fields := watermill.LogFields{"consumer": s.delivery.Consumer, "topic": s.delivery.Topic}
		switch {
		case err != nil && !failing:
			s.config.Logger.Error("Rows of handled messages cannot be removed, retrying", err, fields)
		case err == nil && failing:
			s.config.Logger.Info("Rows of handled messages are removed again", fields)
		}
		failing = err != nil
	}
}

func (s *stream) sweep() error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
		removed, err := s.Storage.store.Forget(ctx, s.delivery.Topic, s.delivery.Consumer, s.config.KeepHandled, sweepBatch)
		cancel()
		if err != nil || removed < sweepBatch {
			return err
		}
	}
}
