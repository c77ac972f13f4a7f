package servers

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitConfig configures a private RabbitMQ.
type RabbitConfig struct {
	// Version is, for example, "4.3": a version that scripts/newer-servers.sh has unpacked,
	// or the version of Debian's package on this machine. It defaults to the version of the
	// peer, then to [RabbitVariable]. If that is not set, BinDir decides.
	Version string

	// BinDir is the directory of rabbitmq-server and rabbitmqctl. Defaults to the
	// directories of the packages for Debian, Red Hat and Homebrew, then to PATH.
	BinDir string

	// Settings are lines of rabbitmq.conf, for example "consumer_timeout = 5000". All other
	// settings have RabbitMQ's defaults.
	Settings []string

	// Patience is how long the start may take. Defaults to 5 minutes.
	Patience time.Duration

	// Peer is a broker whose cluster the new broker joins. It must be running when the
	// new broker starts. If it is nil, the new broker is not part of a cluster.
	Peer *Rabbit
}

// Rabbit is a private RabbitMQ broker with one node, which runs as a child of this
// process. The user is guest, with the password guest. Do not call two methods that
// change the state of the broker at the same time.
type Rabbit struct {
	config RabbitConfig
	erlang string // directory of the Erlang for the version; "" means that of this machine
	dir    tempDir
	node   node
	epmd   *child // Erlang's port mapper; it keeps running when the broker is killed
	server *child
	close  func() error
}

// StartRabbit creates and starts a new node, and returns when it is ready. This takes a
// few seconds.
func StartRabbit(ctx context.Context, config RabbitConfig) (*Rabbit, error) {
	r, err := startRabbit(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("servers: RabbitMQ: %w", err)
	}
	return r, nil
}

// URL returns the AMQP URL of a virtual host; "/" always exists.
func (r *Rabbit) URL(vhost string) string {
	return fmt.Sprintf("amqp://guest:guest@%s/%s", r.Address(), url.PathEscape(vhost))
}

// Address returns the host and port of the server.
func (r *Rabbit) Address() string { return loopback(r.node.port) }

// Name returns the name of the node, as Erlang prints it.
func (r *Rabbit) Name() string { return "'" + r.node.name + "'" }

// Kill ends the broker with SIGKILL, and returns when it has ended. Confirmed
// persistent messages still exist after [Rabbit.Restart] if their queue still exists,
// see [Rabbit.WriteDefinitions].
func (r *Rabbit) Kill() { r.server.kill() }

// Stop shuts the broker down. The broker closes its connections.
func (r *Rabbit) Stop() { r.server.stop(syscall.SIGTERM, r.config.Patience) }

// Restart starts the broker again, on the same port and with the same data, and returns
// when it is ready. It stops a running broker first.
func (r *Rabbit) Restart(ctx context.Context) error {
	r.Stop()
	if err := r.start(ctx); err != nil {
		return fmt.Errorf("servers: RabbitMQ: restart: %w", err)
	}
	return nil
}

// Freeze stops the broker with SIGSTOP. Connections stay open, but the broker does not
// answer.
func (r *Rabbit) Freeze() { r.server.freeze() }

// Thaw lets the broker continue after [Rabbit.Freeze].
func (r *Rabbit) Thaw() { r.server.thaw() }

// Close ends the broker and removes its data. Further calls do nothing, and return the
// result of the first call.
func (r *Rabbit) Close() error { return r.close() }

func (r *Rabbit) discard() error {
	// The data is not needed any more, and a shutdown would take seconds.
	r.server.kill()
	r.epmd.kill()
	return r.dir.remove()
}

func (r *Rabbit) path(name string) string { return filepath.Join(r.dir.path, name) }

// ctlVariable names the environment variable that contains the rabbitmqctl command for
// the broker of AMQP_URL, for example "sudo -n rabbitmqctl".
const ctlVariable = "RABBITMQCTL"

// Ctl is the command line that runs rabbitmqctl for one broker.
type Ctl []string

// Run runs rabbitmqctl with args and input, and returns its output. It takes about half
// a second.
func (c Ctl) Run(ctx context.Context, input string, args ...string) (string, error) {
	line := slices.Concat(c, args)
	command := exec.CommandContext(ctx, line[0], line[1:]...)
	command.Stdin = strings.NewReader(input)
	output, err := command.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("servers: rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return string(output), nil
}

// ctlFor returns the rabbitmqctl command for a broker that this package has not
// started. If the environment variable RABBITMQCTL is set, this is the command in the
// variable. Otherwise it is rabbitmqctl in PATH, but only for a broker on the default
// port of this machine, because rabbitmqctl in PATH connects to one node only. For
// other brokers, ctlFor returns nil.
func ctlFor(url string) Ctl {
	if command := strings.Fields(os.Getenv(ctlVariable)); len(command) > 0 {
		return command
	}
	uri, err := amqp.ParseURI(url)
	if err != nil {
		return nil
	}
	ip := net.ParseIP(uri.Host)
	local := uri.Host == "localhost" || ip != nil && ip.IsLoopback()
	path, err := exec.LookPath("rabbitmqctl")
	if err != nil || !local || uri.Port != 5672 {
		return nil
	}
	return Ctl{path}
}

// Eval evaluates an Erlang expression in the broker and returns its value, as Erlang
// prints it. It uses Erlang's erl_call, which takes only milliseconds. Without
// erl_call, or if the broker's cookie cannot be read, it uses rabbitmqctl, see
// [Ctl.Run].
func (c Ctl) Eval(ctx context.Context, expression string) (string, error) {
	if line := c.erlCall(); line != nil {
		command := exec.CommandContext(ctx, line[0], append(line[1:], "-fetch_stdout", "-no_result_term", "-e")...)
		command.Stdin = strings.NewReader("try begin " + expression + ` end of ItsValue -> io:format("value ~0p", [ItsValue])` +
			` catch ItsClass:ItsReason -> io:format("error ~0p", [{ItsClass, ItsReason}]) end.` + "\n")
		output, _ := command.Output() // if it fails, the output is empty
		if value, ok := strings.CutPrefix(string(output), "value "); ok {
			return value, nil
		}
		if reason, ok := strings.CutPrefix(string(output), "error "); ok {
			return "", fmt.Errorf("servers: the broker evaluates %s: %s", expression, reason)
		}
	}
	output, err := c.Run(ctx, "", "eval", expression+".")
	return strings.TrimSpace(output), err
}

// Quick reports whether [Ctl.Eval] can use erl_call.
func (c Ctl) Quick() bool { return c.erlCall() != nil }

// erlCallScript is the name of a script that runs erl_call with the environment of a
// private broker. The script is in the broker's directory, beside its rabbitmqctl
// script. It exists only if erl_call is installed.
const erlCallScript = "erl_call_broker"

// erlCall returns the command that runs erl_call for the broker, or nil. There is such
// a command for the private brokers of this package, and for the node to which
// rabbitmqctl in PATH connects.
func (c Ctl) erlCall() []string {
	if len(c) != 1 {
		return nil
	}
	if script := filepath.Join(filepath.Dir(c[0]), erlCallScript); executable(script) {
		return []string{script}
	}
	if path, err := exec.LookPath("rabbitmqctl"); err != nil || path != c[0] || os.Getenv("RABBITMQ_NODENAME") != "" {
		return nil
	}
	binary, err := findErlang("", erlCallCommand, erlCallDir)
	if err != nil {
		return nil
	}
	for _, home := range []string{"/var/lib/rabbitmq", os.Getenv("HOME")} {
		if file, err := os.Open(filepath.Join(home, cookie)); err == nil {
			_ = file.Close()
			return []string{"env", "HOME=" + home, binary, "-sname", "rabbit"}
		}
	}
	return nil
}

// erl_call, and its directory inside of Erlang's directory.
const (
	erlCallCommand = "erl_call"
	erlCallDir     = "/lib/erl_interface-*/bin"
)

// RabbitCtl returns the rabbitmqctl command for this broker.
func (r *Rabbit) RabbitCtl() Ctl { return Ctl{r.path("rabbitmqctl")} }

// Ctl runs rabbitmqctl for this broker and returns its output. A broker that is
// starting accepts clients some time before it accepts all commands of rabbitmqctl. If
// rabbitmqctl refuses a command during this time, Ctl repeats the command.
func (r *Rabbit) Ctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.config.Patience)
	defer cancel()
	for {
		output, err := r.RabbitCtl().Run(ctx, "", args...)
		if err == nil || ctx.Err() != nil || !strings.Contains(output, isStarting) {
			return output, err
		}
	}
}

// isStarting is a part of the error that rabbitmqctl prints while a broker is starting.
const isStarting = "requires the 'rabbit' app to be running"

// Eval is like [Ctl.Eval] for this broker. If the broker is still starting, Eval waits
// until it has started, but not longer than RabbitConfig.Patience.
func (r *Rabbit) Eval(ctx context.Context, expression string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.config.Patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		value, err := r.RabbitCtl().Eval(ctx, "case rabbit:is_running() of true -> "+expression+"; false -> it_is_starting end")
		if value != "it_is_starting" && (err == nil || !strings.Contains(err.Error(), isStarting)) {
			return value, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return value, context.Cause(ctx)
		}
	}
}

// WriteDefinitions makes the broker write its queues, exchanges and users to disk.
// Without this call, the broker writes them some seconds later. If it is killed before
// that, a new queue is lost together with its messages, even confirmed messages. RabbitMQ
// 4.3 writes them immediately, so the call has no effect.
func (r *Rabbit) WriteDefinitions(ctx context.Context) error {
	_, err := r.Eval(ctx, "mnesia:sync_log()")
	return err
}

// RaiseMemoryAlarm makes the broker stop reading from connections that publish, so it
// confirms no messages. [Rabbit.ClearMemoryAlarm] ends the alarm.
func (r *Rabbit) RaiseMemoryAlarm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.Patience)
	defer cancel()
	// The broker raises the alarm a moment after this command, so the command is repeated
	// until the answer contains the alarm. The answer comes from the process that notifies
	// the connections. So when the answer contains the alarm, this process has notified the
	// connections.
	const raise = "vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1}), rabbit_alarm:get_alarms()"
	for {
		alarms, err := r.Eval(ctx, raise)
		if err != nil || strings.Contains(alarms, "memory") {
			return err
		}
	}
}

// ClearMemoryAlarm ends the memory alarm.
func (r *Rabbit) ClearMemoryAlarm(ctx context.Context) error {
	_, err := r.Eval(ctx, "vm_memory_monitor:set_vm_memory_high_watermark(0.8)")
	return err
}

// LimitMessages sets the size of the largest message that the broker accepts, and returns
// the size before. The broker reads it when a channel is opened.
func (r *Rabbit) LimitMessages(ctx context.Context, size int) (before int, err error) {
	// RabbitMQ 4 reads the setting once, when it starts, and keeps it in a persistent term.
	value, err := r.Eval(ctx, fmt.Sprintf("{ok, Before} = application:get_env(rabbit, max_message_size), "+
		"application:set_env(rabbit, max_message_size, %[1]d), "+
		"case persistent_term:get(max_message_size, none) of none -> ok; _ -> persistent_term:put(max_message_size, %[1]d) end, Before", size))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(value)
}
