package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func startRabbit(ctx context.Context, config RabbitConfig) (*Rabbit, error) {
	if config.Patience <= 0 {
		config.Patience = 5 * time.Minute
	}
	r := &Rabbit{config: config}
	err := r.find()
	if err != nil {
		return nil, err
	}
	epmd, err := findErlang(r.erlang, "epmd", "/erts-*/bin")
	if err != nil {
		return nil, err
	}
	if r.dir, err = newTempDir("rabbitmq"); err != nil {
		return nil, err
	}
	r.close = sync.OnceValue(r.discard)
	if err := r.startOnFreePorts(ctx, epmd); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rabbit) find() (err error) {
	if r.config.Version == "" && r.config.Peer != nil {
		r.config.Version = r.config.Peer.config.Version
	}
	r.config.Version = chosen(r.config.Version, RabbitVariable)
	if r.config.Version == "" || r.config.BinDir != "" {
		r.config.BinDir, err = findRabbit(r.config.BinDir)
		return err
	}
	r.config.BinDir, r.erlang, err = rabbitDirs(r.config.Version)
	return err
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

// findErlang returns the path of one of Erlang's commands, which is in the directory inside
// of Erlang's directory. If erlang is not "", it is Erlang's directory. Otherwise
// findErlang tries PATH, and the directories of several packages.
func findErlang(erlang, command, inside string) (string, error) {
	places := []string{
		"$PATH",
		"/usr/lib/erlang" + inside,
		"/usr/lib64/erlang" + inside,
		"/opt/homebrew/opt/erlang*/lib/erlang" + inside,
		"/usr/local/opt/erlang*/lib/erlang" + inside,
	}
	if erlang != "" {
		places = []string{erlang + inside}
	}
	dir, err := findDir("", places, command)
	return filepath.Join(dir, command), err
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
		cluster, _, err := askRabbit(ctx, r.URL("/"))
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

// node contains the name and the ports by which a broker and its tools find each other.
type node struct {
	name                 string
	port, dist, epmdPort int
}

func newNode() (node, error) {
	var ports [3]int
	for i := range ports {
		port, err := freePort()
		if err != nil {
			return node{}, err
		}
		ports[i] = port
	}
	return node{
		name: fmt.Sprintf("once-%d@localhost", ports[0]),
		port: ports[0], dist: ports[1], epmdPort: ports[2],
	}, nil
}

// settings returns the environment variables of the broker and its tools. With these
// variables, the broker and the tools do not read /etc/rabbitmq, and write only into
// the broker's directory.
func (r *Rabbit) settings() []string {
	path := os.Getenv("PATH")
	if r.erlang != "" {
		path = r.erlang + "/bin:" + path
	}
	return []string{
		"PATH=" + path,
		"HOME=" + r.dir.path, // contains the cookie, which nodes and tools share
		"RABBITMQ_NODENAME=" + r.node.name,
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", r.node.port),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", r.node.dist),
		fmt.Sprintf("ERL_EPMD_PORT=%d", r.node.epmdPort),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_CRASH_DUMP_SECONDS=0",
		"RABBITMQ_CONF_ENV_FILE=" + r.path("env.conf"),
		"RABBITMQ_CONFIG_FILE=" + r.path("rabbitmq.conf"),
		"RABBITMQ_CONFIG_FILES=" + r.path("conf.d"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + r.path("advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + r.path("enabled_plugins"),
		"RABBITMQ_GENERATED_CONFIG_DIR=" + r.path("generated"),
		"RABBITMQ_MNESIA_BASE=" + r.path("data"),
		"RABBITMQ_LOG_BASE=" + r.path("log"),
		"RABBITMQ_PID_FILE=" + r.path("pid"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"RUNNING_UNDER_SYSTEMD=1", // with this variable, the script replaces itself by the broker, and is not its parent
	}
}

func (r *Rabbit) write() error {
	config := append([]string{
		"listeners.tcp.1 = " + loopback(r.node.port),
		"cluster_name = " + r.cluster(),
		"log.console = true",
		"log.file = false",
	}, r.config.Settings...)

	environment := []string{"#!/bin/sh"}
	for _, setting := range r.settings() {
		name, value, _ := strings.Cut(setting, "=")
		environment = append(environment, fmt.Sprintf("export %s=%s", name, quote(value)))
	}
	script := func(command ...string) string {
		for i := range command {
			command[i] = quote(command[i])
		}
		return lines(append(slices.Clone(environment), `exec `+strings.Join(command, " ")+` "$@"`))
	}

	erlCall, missing := findErlang(r.erlang, erlCallCommand, erlCallDir)
	for _, file := range []struct {
		name, content string
		mode          os.FileMode
	}{
		{"rabbitmq.conf", lines(config), 0o600},
		{"env.conf", "", 0o600},
		{"enabled_plugins", "[].\n", 0o600},
		{"advanced.config", "[].\n", 0o600},
		{"rabbitmqctl", script(filepath.Join(r.config.BinDir, "rabbitmqctl")), 0o700},
		{erlCallScript, script(erlCall, "-sname", r.node.name), 0o700},
	} {
		if file.name == erlCallScript && missing != nil {
			continue
		}
		if err := os.WriteFile(r.path(file.name), []byte(file.content), file.mode); err != nil {
			return err
		}
	}
	if peer := r.config.Peer; peer != nil {
		secret, err := os.ReadFile(peer.path(cookie))
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.path(cookie), secret, 0o400); err != nil && !os.IsPermission(err) { // an earlier attempt may have written it
			return err
		}
	}
	return os.MkdirAll(r.path("conf.d"), 0o700)
}

// cookie is the file in HOME that contains the shared secret of a cluster.
const cookie = ".erlang.cookie"

func (r *Rabbit) cluster() string {
	if peer := r.config.Peer; peer != nil {
		return peer.cluster()
	}
	return r.node.name
}

func lines(list []string) string { return strings.Join(list, "\n") + "\n" }

func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
