package rabbit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// severalNodesHeartbeat is the default heartbeat if there is another node, in place of amqp091's 10
// s. A node that hangs is then left after 3 s.
const severalNodesHeartbeat = 2 * time.Second

// nodes chooses between the addresses of a cluster, for all connections of a Publisher or a
// Subscriber.
type nodes struct {
	configured []string // PublisherConfig.Nodes or SubscriberConfig.Nodes
	lookup     func(ctx context.Context, host string) ([]string, error)

	mu   sync.Mutex
	last string // address of the latest connection
}

func newNodes(configured []string) *nodes {
	return &nodes{configured: configured, lookup: net.DefaultResolver.LookupHost}
}

// address is the address of a node. host is the name that its certificate contains.
type address struct{ host, hostPort string }

// inOrder returns the address of the latest connection last, because that node may be lost, and the
// others in random order, so that the clients of a lost node spread over the others. If resolve is
// true, a host name with several IP addresses counts as several nodes.
func (n *nodes) inOrder(ctx context.Context, uri amqp091.URI, resolve bool) []address {
	var all []address
	for _, node := range append([]string{net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))}, n.configured...) {
		host, port, err := splitNode(node, uri.Port)
		if err != nil {
			continue // the constructor has refused it
		}
		for _, ip := range n.resolve(ctx, host, resolve) {
			a := address{host, net.JoinHostPort(ip, port)}
			if !slices.ContainsFunc(all, func(other address) bool { return other.hostPort == a.hostPort }) {
				all = append(all, a)
			}
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := slices.IndexFunc(all, func(a address) bool { return a.hostPort == n.last }); i >= 0 {
		latest := all[i]
		all = append(slices.Delete(all, i, i+1), latest)
	}
	return all
}

// resolve returns host itself if it has at most one IPv4 and one IPv6 address, which net.Dialer tries
// side by side.
func (n *nodes) resolve(ctx context.Context, host string, wanted bool) []string {
	if !wanted || net.ParseIP(host) != nil {
		return []string{host}
	}
	ips, err := n.lookup(ctx, host)
	v4 := 0
	for _, ip := range ips {
		if !strings.Contains(ip, ":") {
			v4++
		}
	}
	if err != nil || max(v4, len(ips)-v4) < 2 {
		return []string{host} // net.Dialer reports the error
	}
	return ips
}

func (n *nodes) connectedTo(a address) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = a.hostPort
}

// splitNode reads "host" or "host:port".
func splitNode(node string, defaultPort int) (host, port string, err error) {
	if strings.ContainsAny(node, "/@") { // may contain a password
		return "", "", errors.New(`contains more than "host" or "host:port"; ` +
			`scheme, user, password and virtual host are those of Connection.AmqpURI`)
	}
	host, port, err = net.SplitHostPort(node)
	if err != nil {
		host, port = strings.Trim(node, "[]"), strconv.Itoa(defaultPort)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if host == "" || strings.ContainsAny(host, ", \t\r\n[]") || err != nil || number == 0 {
		return "", "", fmt.Errorf(`is %q; it must be "host" or "host:port"`, node)
	}
	return host, port, nil
}

func (e *configErrors) requireNodes(nodes []string) {
	for i, node := range nodes {
		if _, _, err := splitNode(node, 1); err != nil {
			*e = append(*e, fmt.Errorf("rabbit: Nodes[%d] %w", i, err))
		}
	}
}

// namesSeveralHosts reports whether a URI has a list of hosts, which it must not have.
func namesSeveralHosts(uri string) bool {
	_, rest, _ := strings.Cut(uri, "://")
	hosts, _, _ := strings.Cut(rest[strings.LastIndex(rest, "@")+1:], "/")
	return strings.Contains(hosts, ",")
}
