package main

import (
	"context"
	"fmt"
)

const onNetwork = "network"

func toPostgres(w *world) map[string][]*proxy { return w.pg }
func toRabbit(w *world) map[string][]*proxy   { return w.amqp }

func networkFaults() []fault {
	var all []fault
	for _, side := range []struct {
		prefix, name string
		of           func(w *world) map[string][]*proxy
	}{
		{"pg", "PostgreSQL", toPostgres},
		{"amqp", "RabbitMQ", toRabbit},
	} {
		all = append(all,
			fault{
				name: side.prefix + "-reset", about: "all connections to " + side.name + " are reset, several times", on: onNetwork,
				strike: func(ctx context.Context, s *strike) (string, error) {
					return s.resets(ctx, s.proxies(side.of(s.world)))
				},
			},
			fault{
				name: side.prefix + "-silent", about: "nothing arrives on connections to " + side.name + ", and nobody is told", on: onNetwork,
				strike: func(ctx context.Context, s *strike) (string, error) {
					return s.mode(ctx, s.proxies(side.of(s.world)), silent, "swallowed", 1)
				},
			},
			fault{
				name: side.prefix + "-half-open", about: "connections to " + side.name + " end, and only the server is told", on: onNetwork,
				strike: func(ctx context.Context, s *strike) (string, error) {
					return s.mode(ctx, s.proxies(side.of(s.world)), halfOpen, "half-open", 1)
				},
			},
			fault{
				name: side.prefix + "-slow", about: "everything takes a while to and from " + side.name, on: onNetwork,
				strike: func(ctx context.Context, s *strike) (string, error) {
					return s.mode(ctx, s.proxies(side.of(s.world)), slowing, "delayed", 200)
				},
			},
			fault{
				name: side.prefix + "-refused", about: "connections to " + side.name + " are reset and new ones refused", on: onNetwork,
				strike: func(ctx context.Context, s *strike) (string, error) {
					proxies := s.proxies(side.of(s.world))
					for _, p := range proxies {
						p.set(refusing)
						p.reset()
					}
					return s.mode(ctx, proxies, refusing, "refused", 3)
				},
			})
	}
	for _, c := range []struct {
		name, about string
		to          func(w *world) map[string][]*proxy
		role        string
		at          string
		do          action // zero: cut when the next message arrives
	}{
		{"cut-commit-writer", "a writer's connection is cut exactly after COMMIT was sent", toPostgres, writing, postgresCommit, cutAfter},
		{"cut-commit-forwarder", "a forwarder's connection is cut after COMMIT was sent", toPostgres, forwarding, postgresCommit, cutAfter},
		{"cut-commit-consumer", "a consumer's connection is cut exactly after COMMIT was sent", toPostgres, consuming, postgresCommit, cutAfter},
		{"cut-before-commit", "a consumer's connection is cut exactly before COMMIT arrives", toPostgres, consuming, postgresCommit, cutBefore},
		{"cut-publish", "a forwarder's connection is cut exactly after a publish was sent", toRabbit, forwarding, amqpPublish, pass},
		{"cut-before-confirm", "a forwarder's connection is cut exactly before a confirm arrives", toRabbit, forwarding, amqpConfirm, cutBefore},
		{"cut-after-confirm", "a forwarder's connection is cut exactly after a confirm arrived", toRabbit, forwarding, amqpConfirm, cutAfter},
		{"cut-before-ack", "a consumer's connection is cut exactly before an ack arrives", toRabbit, consuming, amqpAck, cutBefore},
		{"cut-after-ack", "a consumer's connection is cut exactly after an ack arrived", toRabbit, consuming, amqpAck, cutAfter},
	} {
		all = append(all, fault{
			name: c.name, about: c.about, on: onNetwork, writes: c.role == writing,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.cuts(ctx, c.to(s.world)[c.role][0], c.at, c.do)
			},
		})
	}
	return all
}

// resets makes the proxies reset all connections, again and again until connections were
// reset three times.
func (s *strike) resets(ctx context.Context, proxies []*proxy) (string, error) {
	reset := s.growing(sum(proxies, "reset"))
	for n := range int64(3) {
		if err := s.until(ctx, "connections were reset", func() bool {
			for _, p := range proxies {
				p.reset()
			}
			return reset() > n
		}); err != nil {
			return "", err
		}
		s.hold(ctx)
	}
	return fmt.Sprintf("%d connections were reset", reset()), nil
}

// mode sets the mode of the proxies to m, and waits until the proxies have counted an
// event often enough. Then it sets the mode back. name is the name of the
// event, and enough is the required count.
func (s *strike) mode(ctx context.Context, proxies []*proxy, m mode, name string, enough int64) (string, error) {
	counted := s.growing(sum(proxies, name))
	for _, p := range proxies {
		p.set(m)
		defer p.set(passing)
	}
	err := s.until(ctx, name, func() bool { return counted() >= enough })
	s.hold(ctx)
	s.hold(ctx)
	return fmt.Sprintf("%s: %d", name, counted()), err
}

// cuts makes the proxy cut a connection five times. Each time, the proxy cuts the
// connection at a certain message of the protocol. at is the name of this
// message.
func (s *strike) cuts(ctx context.Context, p *proxy, at string, do action) (string, error) {
	cut := s.growing(func() int64 { return p.counted("cut") })
	defer p.cut(nil)
	const times = 5
	for n := range int64(times) {
		if do == pass {
			p.cut(cutBetween(p, at))
		} else {
			p.cut(cutAt(p, at, do))
		}
		if err := s.until(ctx, "a connection was cut at "+at, func() bool { return cut() > n }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d connections were cut at %s", cut(), at), nil
}
