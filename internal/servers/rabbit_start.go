package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func startRabbit(ctx context.Context, config RabbitConfig) (*Rabbit, error) {
	if config.Patience <= 0 {
		config.Patience = 5 * time.Minute
	}
	var err error
	if config.BinDir, err = findRabbit(config.BinDir); err != nil {
		return nil, err
	}
	epmd, err := findEpmd()
	if err != nil {
		return nil, err
	}
	dir, err := newTempDir("rabbitmq")
	if err != nil {
		return nil, err
	}
	r := &Rabbit{config: config, dir: dir}
	r.close = sync.OnceValue(r.discard)
	if err := r.startOnFreePorts(ctx, epmd); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// findRabbit returns the directory of RabbitMQ's commands. This is binDir, if binDir is
// not "". Otherwise findRabbit tries the directories of several packages, and then
// PATH. PATH is last because on Debian the commands in PATH are wrappers: they change
// the user, and work with only one node.
func findRabbit(binDir string) (string, error) {
	return findDir(binDir, []string{
		"/usr/lib/rabbitmq/bin",
		"/opt/homebrew/opt/rabbitmq/sbin",
		"/usr/local/opt/rabbitmq/sbin",
		"$PATH",
	}, "rabbitmq-server", "rabbitmqctl")
}

func findEpmd() (string, error) {
	dir, err := findDir("", []string{
		"$PATH",
		"/usr/lib/erlang/erts-*/bin",
		"/usr/lib64/erlang/erts-*/bin",
		"/opt/homebrew/opt/erlang*/lib/erlang/erts-*/bin",
		"/usr/local/opt/erlang*/lib/erlang/erts-*/bin",
	}, "epmd")
	return filepath.Join(dir, "epmd"), err
}

func (r *Rabbit) startOnFreePorts(ctx context.Context, epmd string) (err error) {
	for range 3 { // another process may take a port meanwhile
		if r.node, err = newNode(); err != nil {
			return err
		}
		if r.config.Peer != nil {
			r.node.epmdPort = r.config.Peer.node.epmdPort
		}
		if err = r.write(); err != nil {
			return err
		}
		if err = r.startEpmd(ctx, epmd); err == nil {
			err = r.start(ctx)
		}
		if err == nil {
			err = r.join(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.epmd.kill()
		ports := []int{r.node.port, r.node.dist}
		if r.config.Peer == nil {
			ports = append(ports, r.node.epmdPort)
		}
		if !collided(err, ports...) {
			return err
		}
	}
	return err
}

// startEpmd starts Erlang's port mapper in the foreground. Otherwise the node would
// start the port mapper, which would then not be a child of this process, and would
// continue after the node has ended.
func (r *Rabbit) startEpmd(ctx context.Context, binary string) error {
	if r.config.Peer != nil {
		return nil // the peer's epmd is used
	}
	command := exec.Command(binary, "-address", "127.0.0.1", "-port", strconv.Itoa(r.node.epmdPort))
	command.Dir = r.dir.path
	started, err := startChild(command, r.path("epmd.log"), syscall.SIGKILL)
	if err != nil {
		return err
	}
	r.epmd = started
	return await(ctx, started, "epmd", time.Minute, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", loopback(r.node.epmdPort))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (r *Rabbit) start(ctx context.Context) error {
	command := exec.Command(filepath.Join(r.config.BinDir, "rabbitmq-server"))
	command.Dir = r.dir.path
	command.Env = append(environmentWithout("RABBITMQ_", "ERL_", "HOME="), r.settings()...)
	server, err := startChild(command, r.path("rabbitmq.log"), syscall.SIGKILL)
	if err != nil {
		return err
	}
	r.server = server
	err = await(ctx, server, "RabbitMQ", r.config.Patience, func(ctx context.Context) error {
		cluster, err := askRabbit(ctx, r.URL("/"))
		if err == nil && cluster != r.cluster() {
			err = fmt.Errorf("another broker, %q, listens on the port", cluster)
		}
		return err
	})
	if err != nil {
		server.kill()
	}
	return err
}

// join adds the node to the cluster of its peer. It does nothing without a peer.
func (r *Rabbit) join(ctx context.Context) error {
	if r.config.Peer == nil {
		return nil
	}
	for _, step := range [][]string{{"stop_app"}, {"join_cluster", r.config.Peer.node.name}, {"start_app"}} {
		if _, err := r.Ctl(ctx, step...); err != nil {
			return err
		}
	}
	return nil
}
