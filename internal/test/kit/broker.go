package kit

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/servers"
)

// Broker is a new, empty virtual host of RabbitMQ. It is deleted after its test ends.
// Without a usable rabbitmqctl, no virtual host can be created. The Broker is then the
// virtual host of AMQP_URL. Other tests use that virtual host too, so take all names
// from [Broker.Name].
type Broker struct {
	// URL is the AMQP URL of the virtual host.
	URL string

	// VHost is the virtual host's name.
	VHost string

	ctl servers.Ctl
}

// whenBusy limits the creation and deletion of what tests use. On a very busy machine, a rabbitmqctl
// takes more than a minute.
const whenBusy = 5 * time.Minute

// Rabbit returns a new virtual host on a shared broker. Use [PrivateRabbit] for a broker
// that the test may kill.
func Rabbit(t testing.TB) Broker {
	t.Helper()
	server, err := rabbitServer()
	if err != nil {
		Without(t, err)
	}
	if server.ctl == nil {
		return Broker{URL: server.url, VHost: server.vhost}
	}

	name, address, err := server.addVHost(t.Context())
	if name != "" {
		t.Cleanup(func() { server.deleteVHost(name) })
	}
	if err != nil {
		t.Fatalf("kit: virtual host %s: %v", name, err)
	}
	return Broker{URL: address, VHost: name, ctl: server.ctl}
}

// Name returns a unique name for an exchange or a queue.
func (b Broker) Name(name string) string { return uniqueName(name, "-") }

// Ctl runs rabbitmqctl for the broker and returns the output. For a command on this
// virtual host, add the arguments "--vhost", b.VHost. Without rabbitmqctl, Ctl skips
// the test. It takes half a second of CPU time, so use [Broker.Eval] if you can.
func (b Broker) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	output, err := b.needCtl(t).Run(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// Eval evaluates an Erlang expression in the broker and returns its value. Without
// rabbitmqctl, Eval skips the test.
func (b Broker) Eval(t testing.TB, expression string) string {
	t.Helper()
	value, err := b.needCtl(t).Eval(t.Context(), expression)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func (b Broker) needCtl(t testing.TB) servers.Ctl {
	t.Helper()
	if b.ctl == nil {
		Without(t, errors.New("kit: there is no rabbitmqctl for this broker: set RABBITMQCTL"))
	}
	return b.ctl
}

// AddUser adds a user without permissions. The caller must defer the returned function,
// which deletes the user. At the time of t.Cleanup it would be too late.
func (b Broker) AddUser(t testing.TB, name, password string) (remove func()) {
	t.Helper()
	b.Eval(t, fmt.Sprintf(`ok = rabbit_auth_backend_internal:add_user(<<%q>>, <<%q>>, <<"testkit">>)`, name, password))
	return func() {
		t.Helper()
		b.Eval(t, fmt.Sprintf(`ok = rabbit_auth_backend_internal:delete_user(<<%q>>, <<"testkit">>)`, name))
	}
}

// Permit sets the permissions of a user in this virtual host. They are regular
// expressions for the names that the user may configure, write and read.
func (b Broker) Permit(t testing.TB, user, configure, write, read string) {
	t.Helper()
	b.Eval(t, fmt.Sprintf(`ok = rabbit_auth_backend_internal:set_permissions(<<%q>>, <<%q>>, <<%q>>, <<%q>>, <<%q>>, <<"testkit">>)`,
		user, b.VHost, configure, write, read))
}

// PermitKeys sets the permissions of a user for the routing keys of a topic exchange of this virtual
// host. They are regular expressions.
func (b Broker) PermitKeys(t testing.TB, user, exchange, write, read string) {
	t.Helper()
	b.Eval(t, fmt.Sprintf(`ok = rabbit_auth_backend_internal:set_topic_permissions(<<%q>>, <<%q>>, <<%q>>, <<%q>>, <<%q>>, <<"testkit">>)`,
		user, b.VHost, exchange, write, read))
}

// CloseConnections closes all connections to this virtual host, as an operator may do.
func (b Broker) CloseConnections(t testing.TB, reason string) {
	t.Helper()
	b.Eval(t, fmt.Sprintf(`[rabbit_networking:close_connection(P, %q) || P <- rabbit_networking:connections(),
		(catch rabbit_reader:info(P, [vhost])) =:= [{vhost, <<%q>>}]]`, reason, b.VHost))
}

const vhostPrefix = "once-test"

// maxBatch is the maximum number of virtual hosts that one command creates, and the
// maximum number that one command deletes. Without erl_call, each command takes half a
// second of CPU time.
const maxBatch = 7

// rabbit creates and deletes virtual hosts on a broker.
type rabbit struct {
	url   string
	vhost string
	user  string
	ctl   servers.Ctl // nil if rabbitmqctl cannot be used

	creating sync.Mutex
	created  []string // names of virtual hosts that no test uses yet
	batch    int      // number of virtual hosts that the last command created

	deleting  sync.Mutex
	unneeded  []string
	failed    []error
	deletions sync.WaitGroup
}

func newRabbit(ctx context.Context, server *servers.Server) (*rabbit, error) {
	uri, err := amqp.ParseURI(server.URL)
	if err != nil {
		return nil, errors.New("kit: the AMQP URL is invalid") // err may contain the password
	}
	r := &rabbit{url: server.URL, vhost: uri.Vhost, user: uri.Username, ctl: server.Ctl}
	if r.ctl != nil && r.sweep(ctx) != nil {
		r.ctl = nil // rabbitmqctl may need root
	}
	return r, nil
}

// addVHost returns a new virtual host and its URL. If creating a virtual host is slow,
// addVHost creates several together when none is left.
func (r *rabbit) addVHost(ctx context.Context) (name, address string, err error) {
	ctx, cancel := context.WithTimeout(ctx, whenBusy)
	defer cancel()
	name, err = r.takeVHost(ctx)
	if err != nil {
		return "", "", err
	}
	address = withVHost(r.url, name)
	// It can take some time until the broker accepts connections to the virtual host.
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
		if r.batch == 0 || !r.ctl.Quick() {
			r.batch = min(2*r.batch+1, maxBatch)
		}
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

func (r *rabbit) createVHosts(ctx context.Context, names []string) error {
	_, err := r.ctl.Eval(ctx, fmt.Sprintf(`[begin ok = rabbit_vhost:add(V, <<"testkit">>),
		ok = rabbit_auth_backend_internal:set_permissions(<<%q>>, V, <<".*">>, <<".*">>, <<".*">>, <<"testkit">>) end || V <- %s]`,
		r.user, binaries(names)))
	return err
}

// deleteVHost deletes a virtual host in the background, together with other virtual
// hosts that are not needed any more. close waits until this is done.
func (r *rabbit) deleteVHost(name string) {
	r.deleting.Lock()
	defer r.deleting.Unlock()
	r.unneeded = append(r.unneeded, name)
	if len(r.unneeded) >= maxBatch {
		r.deleteUnneeded()
	}
}

// deleteUnneeded starts to delete the virtual hosts that are not needed any more. The
// caller must hold the mutex deleting.
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

func (r *rabbit) deleteVHosts(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, whenBusy)
	defer cancel()
	_, err := r.ctl.Eval(ctx, fmt.Sprintf(`[ok = rabbit_vhost:delete(V, <<"testkit">>) || V <- %s]`, binaries(names)))
	return err
}

func binaries(names []string) string {
	var list []string
	for _, name := range names {
		list = append(list, fmt.Sprintf(`<<%q>>`, name))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// printed matches a binary that Erlang prints.
var printed = regexp.MustCompile(`<<"([^"]*)">>`)

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
	ctx, cancel := context.WithTimeout(ctx, whenBusy)
	defer cancel()
	output, err := r.ctl.Eval(ctx, "rabbit_vhost:list_names()")
	if err != nil {
		return err
	}
	var names []string
	for _, match := range printed.FindAllStringSubmatch(output, -1) {
		if stale(match[1], vhostPrefix, "-") {
			names = append(names, match[1])
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
