package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

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
