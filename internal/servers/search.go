package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// search finds one server. It tries the sources of a server in the order that the
// package documentation describes.
type search struct {
	name     string // "PostgreSQL"
	variable string // environment variable with the URL of a server
	address  string // address to try without the variable
	url      string // URL of the server at that address
	service  string // name in compose.yaml

	ask   func(ctx context.Context, url string) error // checks that a server accepts a connection
	start func(ctx context.Context) (*Server, error)  // starts a private server
	ctl   func(url string) Ctl                        // returns the rabbitmqctl command for a running server; may be nil
}

func (s search) run(ctx context.Context, config ResolveConfig) (*Server, error) {
	server, err := s.find(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("servers: no %s: %w", s.name, err)
	}
	if config.Output != nil {
		_, _ = fmt.Fprintf(config.Output, "%s: %s\n", s.name, server.how)
	}
	return server, nil
}

func (s search) find(ctx context.Context, config ResolveConfig) (*Server, error) {
	if config.Private {
		return s.start(ctx)
	}
	if url := os.Getenv(s.variable); url != "" {
		// The user has chosen this server, so no other server is tried.
		if err := s.ask(ctx, url); err != nil {
			return nil, fmt.Errorf("%s: %w", s.variable, err)
		}
		return s.running(url, "that of "+s.variable), nil
	}

	err := s.ask(ctx, s.url)
	if err == nil {
		return s.running(s.url, s.address+", which answers"), nil
	}
	reasons := []error{errors.New(s.variable + " is not set"), fmt.Errorf("%s: %w", s.address, err)}

	server, err := s.start(ctx)
	if err == nil {
		server.how += because(reasons)
		return server, nil
	}
	reasons = append(reasons, err)

	if err = s.compose(ctx, config.ComposeFile); err == nil {
		how := s.address + ", a container of compose.yaml that stays until docker compose down"
		return s.running(s.url, how+because(reasons)), nil
	}
	return nil, errors.Join(append(reasons, err)...)
}

// running returns a Server for a server that was running already. Its Close does
// nothing.
func (s search) running(url, how string) *Server {
	server := &Server{URL: url, how: how, close: func() error { return nil }}
	if s.ctl != nil {
		server.Ctl = s.ctl(url)
	}
	return server
}

func because(reasons []error) string {
	words := make([]string, len(reasons))
	for i, reason := range reasons {
		words[i] = reason.Error()
	}
	return " (" + strings.Join(words, "; ") + ")"
}
