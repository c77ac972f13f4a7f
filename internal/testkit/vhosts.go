package testkit

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/servers"
)

const vhostPrefix = "once-test"

// rabbit creates and deletes virtual hosts on a broker.
type rabbit struct {
	url   string
	vhost string
	user  string
	ctl   servers.Ctl // nil if rabbitmqctl cannot be used
}

func newRabbit(ctx context.Context, server *servers.Server) (*rabbit, error) {
	uri, err := amqp.ParseURI(server.URL)
	if err != nil {
		return nil, errors.New("testkit: the AMQP URL is invalid") // err may contain the password
	}
	r := &rabbit{url: server.URL, vhost: uri.Vhost, user: uri.Username, ctl: server.Ctl}
	if r.ctl != nil && r.sweep(ctx) != nil {
		r.ctl = nil // rabbitmqctl may require root
	}
	return r, nil
}

// addVHost creates a virtual host with all permissions for the user of the AMQP URL, and
// returns its URL.
func (r *rabbit) addVHost(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// One call for everything. rabbitmqctl returns before the broker has finished.
	definitions := fmt.Sprintf(`{"vhosts":[{"name":%q}],"permissions":[{"user":%q,"vhost":%q,"configure":".*","write":".*","read":".*"}]}`,
		name, r.user, name)
	if _, err := r.ctl.Run(ctx, definitions, "import_definitions"); err != nil {
		return "", err
	}
	address := withVHost(r.url, name)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := amqp.Dial(address)
		if err == nil {
			return address, conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("created by %s, but not on the broker of the AMQP URL: %w", r.ctl[0], err)
		}
	}
}

func (r *rabbit) deleteVHost(ctx context.Context, name string) error {
	_, err := r.ctl.Run(ctx, "", "delete_vhost", name)
	return err
}

// sweep deletes virtual hosts that killed processes have left behind. It fails if
// rabbitmqctl cannot be used.
func (r *rabbit) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	output, err := r.ctl.Run(ctx, "", "--quiet", "list_vhosts", "name")
	if err != nil {
		return err
	}
	for line := range strings.Lines(output) {
		if name := strings.TrimSpace(line); stale(name, vhostPrefix, "-") {
			_ = r.deleteVHost(ctx, name)
		}
	}
	return nil
}

// withVHost returns a valid AMQP URL with another virtual host.
func withVHost(address, name string) string {
	parsed, _ := url.Parse(address)
	parsed.Path, parsed.RawPath = "/"+name, ""
	return parsed.String()
}
