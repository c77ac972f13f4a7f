package service

import (
	"github.com/watermill-once/once/operate/health"
)

// newHealth returns the checks of /health/live and /health/ready. This instance can take
// orders if its parts run and it can reach its database. It needs no broker for this,
// because the outbox stores the events. The lag of the outbox is reported, too.
func (s *Service) newHealth() (*health.Health, error) {
	return health.New(s.requests, health.Config{
		Schema: s.database.Tables,
		Running: map[string]<-chan struct{}{
			"consumers": s.router.Running(),
			"forwarder": s.forwarder.Running(),
		},
		MaxLag:   maxLag,
		Stopping: s.stopping,
	})
}
