package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

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
	binary, err := findErlCall()
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

func findErlCall() (string, error) {
	const inErlang = "/lib/erl_interface-*/bin"
	dir, err := findDir("", []string{
		"$PATH",
		"/usr/lib/erlang" + inErlang,
		"/usr/lib64/erlang" + inErlang,
		"/opt/homebrew/opt/erlang*/lib/erlang" + inErlang,
		"/usr/local/opt/erlang*/lib/erlang" + inErlang,
	}, "erl_call")
	return filepath.Join(dir, "erl_call"), err
}
