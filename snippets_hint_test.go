package once_test

import (
	"context"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/hint"
)

// More code of the docs, as in snippets_test.go.

func receiveHints(ctx context.Context, fwd *forwarder.Forwarder) error {
	receiver, err := hint.Listen(":7946", fwd.Hint)
	if err != nil {
		return err
	}
	return once.Run(ctx, 0, fwd, receiver)
}

func sendHints() (*hint.Sender, error) {
	sender, err := hint.NewSender([]string{"forwarder.shop.svc:7946"}, hint.Config{})
	return sender, err
}

var _, _ = receiveHints, sendHints
