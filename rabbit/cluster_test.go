package rabbit_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
	"github.com/watermill-once/once/rabbit"
)

// cluster is a cluster of three nodes with a quorum queue, a Publisher and a Subscriber.
type cluster struct {
	*testing.T

	nodes     []*servers.Rabbit
	queue     string
	publisher *rabbit.Publisher
	handled   *handled
	logs      map[string]*heard // of the publisher and of the subscriber

	mu        sync.Mutex
	confirmed map[string]bool
	refused   int
}

// connect connects a Publisher and a Subscriber of a new queue to the nodes or, if balanced, to a TCP
// load balancer.
func connect(t *testing.T, nodes []*servers.Rabbit, balanced bool) *cluster {
	t.Helper()
	c := &cluster{
		T: t, nodes: nodes, confirmed: make(map[string]bool), logs: map[string]*heard{"publisher": new(heard), "subscriber": new(heard)},
	}
	c.queue = declareQuorum(t, c.nodes[0].URL("/"), len(c.nodes))
	var addresses []string
	for _, node := range c.nodes {
		addresses = append(addresses, node.Address())
	}
	url := c.nodes[0].URL("/")
	if balanced {
		url = strings.Replace(url, c.nodes[0].Address(), balancer(t, addresses), 1) + "?heartbeat=2"
		addresses = nil
	}
	config := queueConfig(url)
	config.Queue.Arguments = amqp091.Table{
		"x-queue-type": "quorum", "x-quorum-initial-group-size": int32(len(c.nodes)), "x-queue-leader-locator": "client-local",
	}
	c.publisher = newPublisher(t, config, rabbit.PublisherConfig{
		Nodes: addresses, Logger: c.logs["publisher"],
		ConfirmTimeout: 5 * time.Second, // another node does not notice that the leader of the queue hangs
	})
	cfg := brisk
	cfg.Nodes, cfg.Logger = addresses, c.logs["subscriber"]
	s := newSubscriber(t, config, cfg)
	c.handled = handle(subscribe(t, s, c.queue))
	stop := c.traffic()
	t.Cleanup(func() {
		stop()
		kit.Eventually(t, patience, "every confirmed message is handled", func() bool {
			for id := range c.confirmed {
				if c.handled.of(id) == 0 {
					return false
				}
			}
			return true
		})
		t.Logf("%d messages, %d handled more than once", len(c.confirmed), c.handled.repeated())
	})
	return c
}

// traffic publishes until stop is called.
func (c *cluster) traffic() (stop func()) {
	var running sync.WaitGroup
	ended := make(chan struct{})
	running.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			id := fmt.Sprint("m", n)
			outcome := outcomeOf(c.publisher.Publish(c.queue, newMessage(id)))
			c.mu.Lock()
			switch outcome {
			case "confirmed":
				c.confirmed[id] = true
			case "refused", "unacceptable":
				c.refused++
			}
			c.mu.Unlock()
		}
	})
	return func() { close(ended); running.Wait() }
}

func (c *cluster) progress() (confirmed, refused int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.confirmed), c.refused
}

// nodeOf returns the node to which the publisher or the subscriber is connected.
func (c *cluster) nodeOf(who string) *servers.Rabbit {
	c.Helper()
	var found *servers.Rabbit
	for _, line := range c.logs[who].all() {
		for _, node := range c.nodes {
			if strings.HasPrefix(line, connectedLine) && strings.Contains(line, node.Address()+"]") {
				found = node
			}
		}
	}
	if found == nil {
		c.Fatalf("the %s is connected to no node: %q", who, c.logs[who].all())
	}
	return found
}

// isWhole reports whether the queue has all its members, so that it survives the loss of a node.
func (c *cluster) isWhole() bool {
	for _, node := range c.nodes {
		critical, err := node.Eval(c.Context(), "{length(nodes()), rabbit_quorum_queue:list_with_minimum_quorum()}")
		if err != nil || critical != "{2,[]}" {
			return false
		}
	}
	return true
}

// patience is for a cluster on a busy machine: to find out that a node hangs, it may need more than a minute.
const patience = 5 * time.Minute

// Trap 123. A Publisher and a Subscriber with a list of nodes leave a node that dies, hangs, or is put into
// maintenance mode, and whose connections an operator closes. Behind a TCP load balancer, messages
// continue after a node dies or hangs. No confirmed message is lost.
func TestPublisherAndSubscriberMoveToAnotherNode(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	nodes := kit.PrivateRabbitCluster(t, 3)
	for _, node := range nodes {
		eval(t, node, "net_kernel:set_net_ticktime(8, 0)") // by default, the nodes notice after a minute that one of them hangs
	}
	c := connect(t, nodes, false)
	eval := func(expression string) func(node *servers.Rabbit) {
		return func(node *servers.Rabbit) {
			if _, err := node.Eval(t.Context(), expression); err != nil {
				t.Error(err)
			}
		}
	}
	// RabbitMQ 3.10 does not let a node continue that the others have given up.
	start := func(node *servers.Rabbit) {
		node.Kill()
		restart(t, node)
	}
	for _, fault := range []struct {
		name         string
		strike, undo func(node *servers.Rabbit)
		refuses      bool // the queue may refuse messages until it has a new leader
	}{
		{"killed", (*servers.Rabbit).Kill, start, true},
		{"frozen", (*servers.Rabbit).Freeze, start, true},
		{"drained", eval("rabbit_maintenance:drain()"), eval("rabbit_maintenance:revive()"), false},
		{"closed", eval(`rabbit_networking:close_all_connections("maintenance")`), func(*servers.Rabbit) {}, false},
	} {
		for who, log := range c.logs {
			kit.Eventually(t, patience, "the cluster is whole", c.isWhole)
			node, connections := c.nodeOf(who), log.said(connectedLine)
			before, refused := c.progress()
			handled := c.handled.ids()
			began := time.Now()
			fault.strike(node)
			kit.Eventually(t, patience, who+" is connected to another node", func() bool { return log.said(connectedLine) > connections })
			moved := time.Since(began)
			kit.Eventually(t, patience, "messages are confirmed", func() bool { n, _ := c.progress(); return n > before+10 })
			if moved > 10*time.Second {
				t.Logf("%s of %s at %s: %q", fault.name, who, node.Address(), log.all())
			}
			confirmed := time.Since(began)
			kit.Eventually(t, patience, "messages are handled", func() bool { return c.handled.ids() > handled+10 })
			t.Logf("%s of %s: connected after %v, confirms after %v, handles after %v", fault.name, who, moved, confirmed, time.Since(began))
			if c.nodeOf(who) == node {
				t.Errorf("%s: the %s has stayed at its node", fault.name, who)
			}
			fault.undo(node)
			if _, now := c.progress(); now > refused && !fault.refuses {
				t.Errorf("%s: %d messages were refused", fault.name, now-refused)
			}
		}
	}

	b := connect(t, nodes, true)
	for i, fault := range []func(node *servers.Rabbit){(*servers.Rabbit).Kill, (*servers.Rabbit).Freeze} {
		kit.Eventually(t, patience, "the cluster is whole", b.isWhole)
		node := nodes[i+1] // the first connections went to these nodes
		before, _ := b.progress()
		handled := b.handled.ids()
		began := time.Now()
		fault(node)
		kit.Eventually(t, patience, "messages are confirmed", func() bool { n, _ := b.progress(); return n > before+500 })
		kit.Eventually(t, patience, "messages are handled", func() bool { return b.handled.ids() > handled+500 })
		t.Logf("behind a load balancer: 500 messages after %v", time.Since(began))
		node.Kill()
		if i == 0 {
			restart(t, node)
		}
	}
}

// balancer returns the address of a TCP load balancer. Each connection goes to the next node that accepts it.
func balancer(t *testing.T, nodes []string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	kit.OK(t, err)
	var next atomic.Int64
	accept(t, listener, func(client net.Conn) {
		i := int(next.Add(1)) % len(nodes)
		proxy(client, append(slices.Clone(nodes[i:]), nodes[:i]...)...)
	})
	return listener.Addr().String()
}

// Trap 123. A node that answers and cannot serve is left for another: it blocks publishers, confirms
// no message, or does not reply to a subscription. The two brokers are no cluster, because a cluster has
// its alarms and queues in common.
func TestANodeThatCannotServeIsLeft(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	brokers := []*servers.Rabbit{kit.PrivateRabbit(t), kit.PrivateRabbit(t)}
	queue := uniqueName("q")
	var addresses []string
	for _, broker := range brokers {
		addresses = append(addresses, broker.Address())
		if _, err := admin(t, broker.URL("/")).QueueDeclare(queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	config := queueConfig(brokers[0].URL("/"))
	h := new(heard)
	c := &cluster{T: t, nodes: brokers, logs: map[string]*heard{"publisher": h}}
	p := newPublisher(t, config, rabbit.PublisherConfig{Nodes: addresses, ConfirmTimeout: 2 * time.Second, Logger: h})
	connected(t, p, queue)
	for name, strike := range map[string]func(broker *servers.Rabbit) (undo func()){
		"alarm": func(broker *servers.Rabbit) func() {
			if err := broker.RaiseMemoryAlarm(t.Context()); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := broker.ClearMemoryAlarm(t.Context()); err != nil {
					t.Error(err)
				}
			}
		},
		"no confirms": func(broker *servers.Rabbit) func() { return suspend(t, broker, queue) },
	} {
		broker := c.nodeOf("publisher")
		undo := strike(broker)
		eventually(t, name+": the other broker confirms", func() bool {
			return p.Publish(queue, newMessage("m")) == nil && c.nodeOf("publisher") != broker
		})
		undo()
	}

	cfg := brisk
	cfg.Nodes, cfg.DialTimeout, cfg.ReadyTimeout = addresses, 2*time.Second, time.Millisecond
	h = new(heard)
	cfg.Logger, c.logs["subscriber"] = h, h
	resume := make(map[*servers.Rabbit]func())
	for _, broker := range brokers {
		resume[broker] = suspend(t, broker, queue)
		defer resume[broker]()
	}
	subscribe(t, newSubscriber(t, config, cfg), queue)
	eventually(t, "connected", func() bool { return h.said(connectedLine) > 0 })
	if at := c.nodeOf("subscriber"); at == brokers[0] {
		resume[brokers[1]]()
	} else {
		resume[brokers[0]]()
	}
	eventually(t, "consumes at the other broker", func() bool { return h.said(consumingLine) > 0 })
}

// separate ends the connections between a node and the others, and makes it refuse new ones, until
// the test calls join. Clients still reach all nodes.
func separate(t *testing.T, node *servers.Rabbit, others []*servers.Rabbit) (join func()) {
	t.Helper()
	var names []string
	for _, other := range others {
		names = append(names, other.Name())
	}
	// A wrong cookie makes the other nodes refuse this node, and this node the others.
	tell := func(cookie, more string) {
		expression := fmt.Sprintf("[erlang:set_cookie(Node, %s) || Node <- [%s]]%s", cookie, strings.Join(names, ","), more)
		kit.OK(t, kit.Err(node.RabbitCtl().Eval(context.WithoutCancel(t.Context()), expression)))
	}
	tell("wrong", ", [erlang:disconnect_node(Node) || Node <- nodes()]")
	return func() { tell("erlang:get_cookie()", "") }
}

// leadBy moves the leader of a quorum queue to a node.
func leadBy(t *testing.T, node *servers.Rabbit, queue string) {
	t.Helper()
	lookup := fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), `, queue)
	eval(t, node, lookup+"rabbit_quorum_queue:transfer_leadership(Q, node())")
	eventually(t, "the node leads the queue", func() bool {
		leads, err := node.Eval(t.Context(), lookup+"element(2, ra_leaderboard:lookup_leader(element(1, amqqueue:get_pid(Q)))) =:= node()")
		return err == nil && leads == "true"
	})
}

// Trap 123. A node that is separated from the others keeps the connections of its clients, and
// delivers nothing. A subscriber leaves it, whether the node led the queue or not.
func TestASeparatedNodeIsLeft(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	c := &cluster{T: t, nodes: kit.PrivateRabbitCluster(t, 3), logs: make(map[string]*heard)}
	var addresses []string
	for _, node := range c.nodes {
		addresses = append(addresses, node.Address())
	}
	var lone *servers.Rabbit
	received := make(map[string]<-chan *message.Message) // by queue
	for _, who := range []string{"leader", "follower"} {
		queue := declareQuorum(t, c.nodes[0].URL("/"), len(c.nodes))
		for received[queue] == nil { // until the subscriber is connected to the node to separate
			h := new(heard)
			c.logs[who] = h
			cfg := brisk
			cfg.Nodes, cfg.Logger, cfg.DialTimeout = addresses, h, 10*time.Second
			config := queueConfig(c.nodes[0].URL("/"))
			config.Queue.Arguments = amqp091.Table{
				"x-queue-type": "quorum", "x-quorum-initial-group-size": int32(len(c.nodes)), "x-queue-leader-locator": "client-local",
			}
			s := newSubscriber(t, config, cfg)
			messages := subscribe(t, s, queue)
			lone = cmp.Or(lone, c.nodeOf(who))
			if c.nodeOf(who) == lone {
				received[queue] = messages
			} else {
				kit.OK(t, s.Close())
			}
		}
		by := lone
		if who == "follower" {
			by = c.nodes[(slices.Index(c.nodes, lone)+1)%len(c.nodes)]
		}
		leadBy(t, by, queue)
		send(t, c.nodes[0].URL("/"), queue, "before")
		receive(t, received[queue]).Ack()
	}
	others := slices.DeleteFunc(slices.Clone(c.nodes), func(node *servers.Rabbit) bool { return node == lone })
	defer separate(t, lone, others)()
	p := newPublisher(t, queueConfig(others[0].URL("/")), rabbit.PublisherConfig{
		Nodes: []string{others[1].Address()}, ConfirmTimeout: 5 * time.Second, // a new leader may not know of the message
	})
	for queue := range received {
		kit.Eventually(t, patience, "the other nodes confirm", func() bool {
			return p.Publish(queue, newMessage("during")) == nil
		})
	}
	for _, messages := range received {
		kit.Eventually(t, patience, "the message arrives", func() bool {
			select {
			case msg := <-messages:
				msg.Ack()
				return msg.UUID == "during"
			default:
				return false
			}
		})
	}
	for who := range c.logs {
		if c.nodeOf(who) == lone {
			t.Errorf("the subscriber %s is connected to the separated node", who)
		}
	}
}
