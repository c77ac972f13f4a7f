package forwarder

import (
	"context"
	"fmt"

	"github.com/watermill-once/once/internal/start"
)

// ping asks the publisher, if it has a method Ping, whether its broker lets it
// in. A broker that cannot be reached is no error: it is waited for like one
// that is lost later.
func (f *Forwarder) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, start.Patience)
	defer cancel()
	err := start.Ping(ctx, f.sender.publisher)
	if err == nil || start.MayPass(err) {
		return nil
	}
	return fmt.Errorf("forwarder: the broker refuses the publisher: %w", err)
}
