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

// ctlVariable holds the rabbitmqctl of the broker that AMQP_URL names, as in
// "sudo -n rabbitmqctl".
const ctlVariable = "RABBITMQCTL"

// Ctl is the command line of a rabbitmqctl that speaks to a certain broker.
type Ctl []string

// Run runs rabbitmqctl with args and input, and returns what it wrote. It
// takes about half a second.
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

// ctlFor returns the rabbitmqctl for a broker that is not ours: that of the
// environment; or that of PATH, which knows one node only, if the broker is
// where this machine's own one listens; or nil.
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
