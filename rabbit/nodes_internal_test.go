package rabbit

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
)

// Trap 123.
func TestNodesAreTriedInRandomOrderAndTheLatestLast(t *testing.T) {
	t.Parallel()
	names := map[string][]string{
		"single": {"10.0.0.1"}, "dual": {"10.0.0.1", "fd00::1"}, "several": {"10.0.0.1", "10.0.0.2", "10.0.0.3"},
	}
	lookup := func(_ context.Context, host string) ([]string, error) {
		if ips, ok := names[host]; ok {
			return ips, nil
		}
		return nil, errors.New("no such host")
	}
	for name, c := range map[string]struct {
		uri     string
		nodes   []string
		dialled bool // a Dial function is configured
		want    []string
	}{
		"one":                  {"amqp://single", nil, false, []string{"single:5672"}},
		"IPv4 and IPv6":        {"amqps://dual", nil, false, []string{"dual:5671"}},
		"several IP addresses": {"amqp://several:1", nil, false, []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"}},
		"with a Dial function": {"amqp://several:1", nil, true, []string{"several:1"}},
		"an unknown host":      {"amqp://unknown", nil, false, []string{"unknown:5672"}},
		"a list with the host": {
			"amqp://a:7",
			[]string{"b", "a:7", "[fd00::1]:8", "fd00::2"},
			false,
			[]string{"[fd00::1]:8", "[fd00::2]:7", "a:7", "b:7"},
		},
		"a list and a Dial func": {"amqp://a", []string{"several:9"}, true, []string{"a:5672", "several:9"}},
	} {
		n := newNodes(c.nodes)
		n.lookup = lookup
		uri, err := amqp091.ParseURI(c.uri)
		if err != nil {
			t.Fatal(err)
		}
		first := make(map[string]bool)
		for range 200 {
			var got []string
			for _, a := range n.inOrder(t.Context(), uri, !c.dialled) {
				got = append(got, a.hostPort)
				if ip, _, err := net.SplitHostPort(a.hostPort); err != nil || a.host != ip && a.host != "several" {
					t.Fatalf("%s: the host of %s is %q", name, a.hostPort, a.host)
				}
			}
			first[got[0]] = true
			if n.last != "" && got[len(got)-1] != n.last {
				t.Fatalf("%s: %q is not the last of %q", name, n.last, got)
			}
			n.connectedTo(address{hostPort: got[0]})
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Fatalf("%s: got %q, want %q", name, got, c.want)
			}
		}
		if len(first) != len(c.want) {
			t.Errorf("%s: only %v were the first", name, first)
		}
	}
}

func TestInvalidNodesAreRefused(t *testing.T) {
	t.Parallel()
	for node, want := range map[string]string{
		"":                     `Nodes[1] is ""; it must be "host" or "host:port"`,
		"rabbit:":              `Nodes[1] is "rabbit:"`,
		"rabbit:0":             `Nodes[1] is "rabbit:0"`,
		"rabbit:70000":         `Nodes[1] is "rabbit:70000"`,
		"a,b":                  `Nodes[1] is "a,b"`,
		"amqp://u:secret@host": `Nodes[1] contains more than "host" or "host:port"`,
	} {
		config := amqp.NewDurableQueueConfig("amqp://rabbit")
		_, publisherErr := NewPublisher(config, PublisherConfig{Nodes: []string{"good", node}})
		_, subscriberErr := NewSubscriber(config, SubscriberConfig{Nodes: []string{"good", node}})
		for _, err := range []error{publisherErr, subscriberErr} {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%q: got %v, want %s", node, err, want)
			}
		}
	}
	for _, uri := range []string{"amqp://u:secret@a,b/v", "amqp://u:secret@a:1,b:2/v"} {
		_, err := NewPublisher(amqp.NewDurableQueueConfig(uri), PublisherConfig{})
		if err == nil || !strings.Contains(err.Error(), "all nodes of the cluster in Nodes") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", uri, err)
		}
	}
}

// Trap 123. A node that accepts connections and sends nothing has only its part of DialTimeout. With several
// nodes, the heartbeat defaults to 2 s.
func TestANodeThatHangsIsLeft(t *testing.T) {
	t.Parallel()
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	url := kit.Rabbit(t).URL
	for _, c := range []struct {
		query string
		nodes []string
		want  time.Duration
	}{
		{"", nil, 10 * time.Second},
		{"", []string{hangs.Addr().String()}, 2 * time.Second},
		{"?heartbeat=7", []string{hangs.Addr().String()}, 7 * time.Second},
	} {
		config := amqp.ConnectionConfig{AmqpURI: url + c.query}
		dial := dialSettings{dialTimeout: 10 * time.Second, writeTimeout: time.Minute, nodes: newNodes(c.nodes)}
		dial.nodes.last = strings.TrimPrefix(url, "amqp://guest:guest@") // try the other node first
		dial.nodes.last, _, _ = strings.Cut(dial.nodes.last, "/")
		conn, err := connect(t.Context(), config, dial)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.end(true)
		if got := conn.amqp.Config.Heartbeat; got != c.want {
			t.Errorf("%v: the heartbeat is %v, want %v", c, got, c.want)
		}
	}
	// The error names each node.
	config := amqp.ConnectionConfig{AmqpURI: "amqp://127.0.0.1:1"}
	dial := dialSettings{dialTimeout: 100 * time.Millisecond, writeTimeout: time.Minute, nodes: newNodes([]string{hangs.Addr().String()})}
	if _, err = connect(t.Context(), config, dial); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1: dial tcp") ||
		!strings.Contains(err.Error(), hangs.Addr().String()+": no connection within 50ms") {
		t.Errorf("got %v, want the reasons of both nodes", err)
	}
}
