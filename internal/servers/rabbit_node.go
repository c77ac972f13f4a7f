package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

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
	return []string{
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

// write writes the node's configuration files and a rabbitmqctl script for this node.
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

	erlCall, missing := findErlCall()
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

// cluster returns the name of the cluster that the node belongs to.
func (r *Rabbit) cluster() string {
	if peer := r.config.Peer; peer != nil {
		return peer.cluster()
	}
	return r.node.name
}

func lines(list []string) string { return strings.Join(list, "\n") + "\n" }

// quote quotes a word for use in a shell script.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
