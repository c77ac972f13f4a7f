package durable

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// Bounds of the pause between two sweeps, of one sweep's transactions, and of
// the time for each.
const (
	shortestPause = time.Second
	longestPause  = 10 * time.Minute
	sweepBatch    = 2000
	sweepTimeout  = time.Minute
)

// sweepAll removes the rows that were kept for long enough, now and then, until
// the subscription ends. Instances do not wait for each other.
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
			s.config.Logger.Error("Handled messages that were kept cannot be removed, trying on", err, fields)
		case err == nil && failing:
			s.config.Logger.Info("Handled messages that were kept are removed again", fields)
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
