package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/watermill-once/once/internal/test/servers"
)

// ticktime is the net_ticktime of the nodes, in seconds: they notice after about this time that
// another node does not answer. The default is 60.
const ticktime = 8

// clusterFaults are the faults of several nodes of RabbitMQ with quorum queues, and of PostgreSQL with
// a synchronous standby. The faults of processes are added, because the processes have several
// addresses.
func clusterFaults() []fault {
	all := slices.DeleteFunc(processFaults(), func(f fault) bool { return f.name == "old-and-new" })
	for _, f := range []fault{
		{name: "leader-kill", about: "SIGKILL of the leader of a queue; it starts again after messages flow", on: onBroker, strike: leaderKill},
		{name: "node-freeze", about: "SIGSTOP of a queue's leader until the others give it up, then SIGCONT", on: onBroker, strike: nodeFreeze},
		{name: "minority", about: "SIGKILL of two of the three nodes", on: onBroker, strike: minority},
		{name: "nodes-stopped", about: "all nodes are stopped or killed, and started in any order", on: onBroker, strike: nodesStopped},
		{name: "rolling-restart", about: "one node after another is stopped in good order, and started", on: onBroker, strike: rollingRestart},
		{name: "leaders-moved", about: "the leaders of the queues are moved to other nodes, several times", on: onBroker, strike: leadersMoved},
		{
			name: "partition", about: "the leader of a queue and the other nodes refuse each other's connections", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.partition(ctx, "erlang:disconnect_node(Node)")
			},
		},
		{
			name: "partition-silent", about: "as partition, but the node's connections to the others stay open, and it reads nothing", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.partition(ctx, "inet:setopts(proplists:get_value(Node, erlang:system_info(dist_ctrl)), [{active, false}])")
			},
		},
		{
			name: "primary-kill", about: "SIGKILL of the primary, promotion of the standby; the old primary becomes its standby", on: onPostgres,
			strike: func(ctx context.Context, s *strike) (string, error) { return s.failover(ctx, s.postgres.Kill) },
		},
		{
			name: "switchover", about: "the primary is stopped in good order, then as in primary-kill", on: onPostgres,
			strike: func(ctx context.Context, s *strike) (string, error) { return s.failover(ctx, s.postgres.Stop) },
		},
		{name: "leader-and-primary-kill", about: "both at the same time", on: onBroker, strike: leaderAndPrimaryKill},
	} {
		// The writers write and no other fault is active, so that a silence means that nothing could flow.
		f.alone, f.writes, f.strike = true, true, measured(f.strike)
		all = append(all, f)
	}
	return all
}

// measured returns a function that injects the fault, and measures the silence: until the fault is
// undone, and from then on until all servers work together again and messages flow.
func measured(inject func(ctx context.Context, s *strike) (string, error)) func(ctx context.Context, s *strike) (string, error) {
	return func(ctx context.Context, s *strike) (string, error) {
		if err := errors.Join(s.whole(ctx), s.flows(ctx)); err != nil {
			return "", err
		}
		during := s.listen()
		proof, err := inject(ctx, s)
		s.during = during()
		after := s.listen()
		err = errors.Join(err, s.flows(ctx), s.whole(ctx))
		s.hold(ctx)
		s.after = after()
		return fmt.Sprintf("%s; silent for %s, then %s", proof, s.during, s.after), err
	}
}

// whole waits until all nodes see each other, every queue has all its members, and the standby has
// every commit. It also sets the ticktime, which a node forgets when it ends.
func (s *strike) whole(ctx context.Context) error {
	expression := fmt.Sprintf("net_kernel:set_net_ticktime(%d, 0), "+
		"{length(nodes()), length(rabbit_quorum_queue:list_with_minimum_quorum())}", ticktime)
	want := fmt.Sprintf("{%d,0}", len(s.nodes)-1)
	for _, node := range s.nodes {
		answer := ""
		if err := s.until(ctx, node.Name()+" and its queues work", func() bool {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			answer, _ = node.Eval(ctx, expression)
			return answer == want
		}); err != nil {
			return fmt.Errorf("%w: it says %s", err, answer)
		}
	}
	return s.until(ctx, "the standby is synchronous", func() bool {
		return s.number(ctx, `SELECT COUNT(*) FROM pg_stat_replication WHERE sync_state = 'sync'`) == 1
	})
}

// together calls the function do for all of the nodes at the same time.
func together(nodes []*servers.Rabbit, do func(node *servers.Rabbit) error) error {
	errs := make([]error, len(nodes))
	var running sync.WaitGroup
	for i, node := range nodes {
		running.Go(func() { errs[i] = do(node) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// shuffled returns the nodes in random order.
func (s *strike) shuffled() []*servers.Rabbit {
	all := slices.Clone(s.nodes)
	s.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// ledBy is an expression: the name of the node that leads a queue.
const ledBy = `begin {ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), element(2, amqqueue:get_pid(Q)) end`

// leader returns a queue through which many messages pass, its leader, and the other nodes.
func (s *strike) leader(ctx context.Context) (queue string, leader *servers.Rabbit, others []*servers.Rabbit, err error) {
	queue = queueOf([]string{ledger, notices}[s.IntN(2)])
	name, err := s.rabbit.Eval(ctx, fmt.Sprintf(ledBy, queue))
	for _, node := range s.nodes {
		if node.Name() == name {
			leader = node
		} else {
			others = append(others, node)
		}
	}
	if leader == nil {
		err = errors.Join(err, fmt.Errorf("%q leads the queue", name))
	}
	return queue, leader, others, err
}

// followed waits until another node leads the queue.
func (s *strike) followed(ctx context.Context, queue string, old *servers.Rabbit, others []*servers.Rabbit) (time.Duration, error) {
	began := time.Now()
	err := s.until(ctx, "another node leads the queue", func() bool {
		name, err := others[0].RabbitCtl().Eval(ctx, fmt.Sprintf(ledBy, queue))
		return err == nil && name != old.Name()
	})
	return time.Since(began).Round(10 * time.Millisecond), err
}

func leaderKill(ctx context.Context, s *strike) (string, error) {
	queue, leader, others, err := s.leader(ctx)
	if err != nil {
		return "", err
	}
	leader.Kill()
	after, err := s.followed(ctx, queue, leader, others)
	err = errors.Join(err, s.flows(ctx))
	s.hold(ctx)
	return fmt.Sprintf("another node led %s after %v", queue, after), errors.Join(err, leader.Restart(context.WithoutCancel(ctx)))
}

// nodeFreeze freezes a node until the other nodes have given it up.
func nodeFreeze(ctx context.Context, s *strike) (string, error) {
	_, leader, others, err := s.leader(ctx)
	if err != nil {
		return "", err
	}
	leader.Freeze()
	began := time.Now()
	err = s.missed(ctx, leader, others)
	after := time.Since(began).Round(10 * time.Millisecond)
	err = errors.Join(err, s.flows(ctx))
	s.hold(ctx)
	leader.Thaw()
	joins, failure := s.joins(ctx, leader)
	return fmt.Sprintf("the other nodes gave it up after %v; then %s", after, joins), errors.Join(err, failure)
}

// joins waits until a node that was separated from the others works together with them again. If a
// node of RabbitMQ 3.10 has not noticed that it was alone, Mnesia lets it join only after a restart.
func (s *strike) joins(ctx context.Context, node *servers.Rabbit) (how string, err error) {
	const byItself = time.Minute
	waiting, cancel := context.WithTimeout(ctx, byItself)
	defer cancel()
	if s.whole(waiting) == nil {
		return "it joined by itself", nil
	}
	node.Kill()
	return "it was restarted", node.Restart(context.WithoutCancel(ctx))
}

// missed waits until all the other nodes see a node no more.
func (s *strike) missed(ctx context.Context, node *servers.Rabbit, others []*servers.Rabbit) error {
	return s.until(ctx, "the other nodes have given up the node", func() bool {
		return !slices.ContainsFunc(others, func(other *servers.Rabbit) bool {
			sees, err := other.RabbitCtl().Eval(ctx, fmt.Sprintf("lists:member(%s, nodes())", node.Name()))
			return err != nil || sees != "false"
		})
	})
}

func minority(ctx context.Context, s *strike) (string, error) {
	killed := s.shuffled()[:len(s.nodes)/2+1]
	_ = together(killed, func(node *servers.Rabbit) error { node.Kill(); return nil })
	err := s.silent(ctx)
	s.hold(ctx)
	return fmt.Sprintf("nothing was published with %d of %d nodes", len(s.nodes)-len(killed), len(s.nodes)),
		errors.Join(err, s.restarted(ctx, killed))
}

// silent waits until nothing has been published for two seconds.
func (s *strike) silent(ctx context.Context) error {
	last, since := int64(-1), time.Now()
	return s.until(ctx, "nothing is published", func() bool {
		if published, _ := s.flow(); published != last {
			last, since = published, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
}

// restarted starts the nodes at random moments. A node may need the others for its start.
func (s *strike) restarted(ctx context.Context, nodes []*servers.Rabbit) error {
	ctx = context.WithoutCancel(ctx)
	pause := make(map[*servers.Rabbit]time.Duration)
	for _, node := range nodes {
		pause[node] = time.Duration(s.Int64N(int64(2 * time.Second)))
	}
	return together(nodes, func(node *servers.Rabbit) error {
		rest(ctx, pause[node])
		return node.Restart(ctx)
	})
}

func nodesStopped(ctx context.Context, s *strike) (string, error) {
	refused := s.growing(sum(s.proxies(s.amqp), "unreachable"))
	all := s.shuffled()
	for _, node := range all {
		if s.IntN(2) == 0 {
			node.Kill()
		} else {
			node.Stop()
		}
	}
	err := s.until(ctx, "connections are refused", func() bool { return refused() > 0 })
	s.hold(ctx)
	return fmt.Sprintf("%d connections were refused", refused()), errors.Join(err, s.restarted(ctx, all))
}

func rollingRestart(ctx context.Context, s *strike) (string, error) {
	var stopped []string
	for _, node := range s.shuffled() {
		began := time.Now()
		node.Stop()
		stopped = append(stopped, time.Since(began).Round(10*time.Millisecond).String())
		if err := errors.Join(node.Restart(context.WithoutCancel(ctx)), s.whole(ctx)); err != nil {
			return "", err
		}
	}
	return "the nodes stopped after " + strings.Join(stopped, ", "), nil
}

// leadersMoved moves the leaders of the busiest queues, each three times, to a random other node.
func leadersMoved(ctx context.Context, s *strike) (string, error) {
	const times = 3
	for range times {
		queue, leader, others, err := s.leader(ctx)
		if err != nil {
			return "", err
		}
		to := others[s.IntN(len(others))].Name()
		if _, err := s.rabbit.Eval(ctx, fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), `+
			`rabbit_quorum_queue:transfer_leadership(Q, %s)`, queue, to)); err != nil {
			return "", err
		}
		if _, err := s.followed(ctx, queue, leader, others); err != nil {
			return "", err
		}
		if err := s.flows(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d leaders moved", times), nil
}

// partition separates a node from the others. The node gives the others' names a wrong cookie, so that
// no connection between them can be made, and evaluates the expression end for each other Node, to end
// the connection that there is. Clients still reach all nodes.
func (s *strike) partition(ctx context.Context, end string) (proof string, err error) {
	_, leader, others, err := s.leader(ctx)
	if err != nil {
		return "", err
	}
	var names []string
	for _, other := range others {
		names = append(names, other.Name())
	}
	// RabbitMQ may have stopped on the node, so the expressions do not wait for it.
	cookie := func(value string) string {
		return fmt.Sprintf("[erlang:set_cookie(Node, %s) || Node <- [%s]]", value, strings.Join(names, ","))
	}
	defer func() {
		_, failure := leader.RabbitCtl().Eval(context.WithoutCancel(ctx), cookie("erlang:get_cookie()"))
		joins, late := s.joins(ctx, leader)
		proof, err = proof+"; then "+joins, errors.Join(err, failure, late)
	}()
	separate := cookie("wrong") + fmt.Sprintf(", [%s || Node <- [%s]]", end, strings.Join(names, ","))
	if _, err := leader.RabbitCtl().Eval(ctx, separate); err != nil {
		return "", err
	}
	began := time.Now()
	alone := s.amqp[consuming][slices.Index(s.nodes, leader)].open()
	err = s.missed(ctx, leader, others)
	if err == nil {
		// Until the partition is longer than the timeouts of the processes.
		rest(ctx, (ticktime+2)*time.Second)
		err = errors.Join(s.missed(ctx, leader, others), s.flows(ctx))
	}
	return fmt.Sprintf("the node and %d connections of consumers were alone for %v", alone, time.Since(began).Round(time.Second)), err
}

// failover ends the primary with the function end, and promotes the standby. When messages flow again,
// the old primary becomes the standby of the new one.
func (s *strike) failover(ctx context.Context, end func()) (string, error) {
	end()
	began := time.Now()
	s.postgres, s.standby = s.standby, s.postgres
	if err := s.postgres.Promote(ctx); err != nil {
		return "", err
	}
	answered := time.Since(began).Round(10 * time.Millisecond)
	err := s.flows(ctx)
	flowed := time.Since(began).Round(10 * time.Millisecond)
	return fmt.Sprintf("the new primary answered after %v, messages flowed after %v", answered, flowed),
		errors.Join(err, s.standby.Follow(context.WithoutCancel(ctx), s.postgres))
}

func leaderAndPrimaryKill(ctx context.Context, s *strike) (string, error) {
	_, leader, _, err := s.leader(ctx)
	if err != nil {
		return "", err
	}
	primary := s.postgres
	proof, err := s.failover(ctx, func() {
		killed := make(chan struct{})
		go func() { leader.Kill(); close(killed) }()
		primary.Kill()
		<-killed
	})
	return proof, errors.Join(err, leader.Restart(context.WithoutCancel(ctx)))
}
