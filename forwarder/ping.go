package forwarder

import (
	"context"
	"fmt"

	"github.com/watermill-once/once/internal/start"
)

// ping calls the method Ping of the publisher, if there is one. It returns an error
// only if the broker refuses the publisher. If the broker cannot be reached, ping
// returns nil, and the forwarder waits for the broker later.
func (f *Forwarder) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, start.Patience)
	defer cancel()
	err := start.Ping(ctx, f.sender.publisher)
	if err == nil || start.MayPass(err) {
		return nil
	}
	return fmt.Errorf("forwarder: the broker refuses the publisher: %w", err)
}
