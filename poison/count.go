package poison

import (
	"context"
	"fmt"

	"github.com/watermill-once/once/internal/parked"
)

// Count returns how many messages in quarantine match. It ignores Filter.Limit
// and Filter.AfterGroup.
func (s *Quarantine) Count(ctx context.Context, f Filter) (int, error) {
	if err := parked.Filter(f).Validate(); err != nil {
		return 0, fmt.Errorf("poison: count: %w", err)
	}
	n, err := s.parked.CountMatching(ctx, parked.Filter(f), parked.Quarantined)
	if err != nil {
		return 0, fmt.Errorf("poison: count: %w", err)
	}
	return n, nil
}
