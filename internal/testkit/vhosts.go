package testkit

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/servers"
)

const vhostPrefix = "once-test"

// maxBatch limits how many virtual hosts are created at once, and is how many are deleted
// at once. Each call of rabbitmqctl takes about half a second of a core.
const maxBatch = 7

// rabbit creates and deletes virtual hosts on a broker.
type rabbit struct {
	url   string
	vhost string
	user  string
	ctl   servers.Ctl // nil if rabbitmqctl cannot be used

	creating sync.Mutex
	created  []string // names of virtual hosts that no test uses yet
	batch    int      // how many were created by the last call

	deleting  sync.Mutex
	unneeded  []string
	failed    []error
	deletions sync.WaitGroup
}

func newRabbit(ctx context.Context, server *servers.Server) (*rabbit, error) {
	uri, err := amqp.ParseURI(server.URL)
	if err != nil {
		return nil, errors.New("testkit: the AMQP URL is invalid") // err may contain the password
	}
	r := &rabbit{url: server.URL, vhost: uri.Vhost, user: uri.Username, ctl: server.Ctl}
	if r.ctl != nil && r.sweep(ctx) != nil {
		r.ctl = nil // rabbitmqctl may need root
	}
	return r, nil
}

// addVHost returns a new virtual host and its URL. Each call of rabbitmqctl takes about
// half a second, so addVHost creates several virtual hosts whenever none is left.
func (r *rabbit) addVHost(ctx context.Context) (name, address string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	name, err = r.takeVHost(ctx)
	if err != nil {
		return "", "", err
	}
	address = withVHost(r.url, name)
	// rabbitmqctl returns before the broker can be used with the virtual host.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := amqp.Dial(address)
		if err == nil {
			return name, address, conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return name, "", fmt.Errorf("created by %s, but not on the broker of the AMQP URL: %w", r.ctl[0], err)
		}
	}
}

func (r *rabbit) takeVHost(ctx context.Context) (string, error) {
	r.creating.Lock()
	defer r.creating.Unlock()
	if len(r.created) == 0 {
		r.batch = min(2*r.batch+1, maxBatch)
		names := make([]string, r.batch)
		for i := range names {
			names[i] = uniqueName(vhostPrefix, "-")
		}
		if err := r.createVHosts(ctx, names); err != nil {
			return "", err
		}
		r.created = names
	}
	name := r.created[0]
	r.created = r.created[1:]
	return name, nil
}

// createVHosts creates virtual hosts with all permissions for the user of the AMQP URL.
func (r *rabbit) createVHosts(ctx context.Context, names []string) error {
	var vhosts, permissions []string
	for _, name := range names {
		vhosts = append(vhosts, fmt.Sprintf(`{"name":%q}`, name))
		permissions = append(permissions, fmt.Sprintf(`{"user":%q,"vhost":%q,"configure":".*","write":".*","read":".*"}`, r.user, name))
	}
	definitions := fmt.Sprintf(`{"vhosts":[%s],"permissions":[%s]}`, strings.Join(vhosts, ","), strings.Join(permissions, ","))
	_, err := r.ctl.Run(ctx, definitions, "import_definitions")
	return err
}

// deleteVHost deletes a virtual host in the background, together with others that are
// not needed any more. close waits until this is done.
func (r *rabbit) deleteVHost(name string) {
	r.deleting.Lock()
	defer r.deleting.Unlock()
	r.unneeded = append(r.unneeded, name)
	if len(r.unneeded) >= maxBatch {
		r.deleteUnneeded()
	}
}

// deleteUnneeded starts to delete the virtual hosts that are not needed any more. The
// caller holds the mutex.
func (r *rabbit) deleteUnneeded() {
	names := r.unneeded
	r.unneeded = nil
	r.deletions.Go(func() {
		if err := r.deleteVHosts(context.Background(), names); err != nil {
			r.deleting.Lock()
			defer r.deleting.Unlock()
			r.failed = append(r.failed, err)
		}
	})
}

// deleteVHosts deletes virtual hosts. It uses eval, because delete_vhost deletes only
// one virtual host per call.
func (r *rabbit) deleteVHosts(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var list []string
	for _, name := range names {
		list = append(list, fmt.Sprintf(`<<%q>>`, name))
	}
	_, err := r.ctl.Run(ctx, "", "eval",
		fmt.Sprintf(`[ok = rabbit_vhost:delete(V, <<"testkit">>) || V <- [%s]].`, strings.Join(list, ",")))
	return err
}

// close deletes the virtual hosts that no test has used. It waits until all virtual
// hosts are deleted.
func (r *rabbit) close() error {
	r.creating.Lock()
	r.deleting.Lock()
	r.unneeded = append(r.unneeded, r.created...)
	r.created = nil
	if len(r.unneeded) > 0 {
		r.deleteUnneeded()
	}
	r.deleting.Unlock()
	r.creating.Unlock()
	r.deletions.Wait()
	return errors.Join(r.failed...)
}

// sweep deletes virtual hosts that were left behind by killed processes. It fails if
// rabbitmqctl cannot be used.
func (r *rabbit) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	output, err := r.ctl.Run(ctx, "", "--quiet", "list_vhosts", "name")
	if err != nil {
		return err
	}
	var names []string
	for line := range strings.Lines(output) {
		if name := strings.TrimSpace(line); stale(name, vhostPrefix, "-") {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		_ = r.deleteVHosts(ctx, names) // another process may delete them too
	}
	return nil
}

// withVHost returns address, which must be a valid AMQP URL, with another virtual host.
func withVHost(address, name string) string {
	parsed, _ := url.Parse(address)
	parsed.Path, parsed.RawPath = "/"+name, ""
	return parsed.String()
}
