package kit_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestVirtualHostIsNew(t *testing.T) {
	onlyAgain(t)
	broker, other := kit.Rabbit(t), kit.Rabbit(t)
	if broker.VHost == other.VHost {
		t.Errorf("two tests have the virtual host %q", broker.VHost)
	}
	conn, err := amqp.Dial(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(broker.Name("q"), true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	t.Logf("host %q", broker.VHost)
}

func TestVirtualHostIsNewAndDeletedAfterItsTests(t *testing.T) {
	kit.Long(t)
	observer := kit.Rabbit(t)
	vhosts := func() string { return observer.Ctl(t, "--quiet", "list_vhosts", "name") }
	before := vhosts() // skips the test without rabbitmqctl
	output, err := rerun(t, "TestVirtualHostIsNew")
	_, rest, _ := strings.Cut(output, `host "`)
	vhost, _, _ := strings.Cut(rest, `"`)
	if err != nil || vhost == "" || strings.Contains(before, vhost) {
		t.Errorf("the virtual host is %q (%v); before, there were %q\n%s", vhost, err, before, output)
	}
	if after := vhosts(); strings.Contains(after, vhost) {
		t.Errorf("%s is left: %q", vhost, after)
	}
}

func TestNamesAreUnique(t *testing.T) {
	broker := kit.Rabbit(t)
	if a, b := broker.Name("orders"), broker.Name("orders"); a == b || !strings.HasPrefix(a, "orders-") {
		t.Errorf("the names are %q and %q", a, b)
	}
}

// parentVariable is the name of an environment variable. If it is set, this program
// acts as the test process that is killed.
const parentVariable = "TESTKIT_TEST_PARENT"

// state returns the state of a process as ps shows it, or "" if the process has ended.
// A zombie counts as ended.
func state(pid int) string {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(content), ") ")
	return strings.Trim(after[:1], "ZX")
}

// A child of the test process is frozen (SIGSTOP) when the test process is killed. The
// child must end too, because its open transaction would block other tests. Only
// SIGKILL ends it: other signals wait until the child is thawed.
func TestFrozenChildDiesWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux sends a signal to a child when its parent ends")
	}
	if os.Getenv(parentVariable) != "" {
		child := exec.CommandContext(t.Context(), "sleep", "600")
		kit.StartChild(t, child)
		if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, time.Minute, "the child is frozen", func() bool { return state(child.Process.Pid) == "T" })
		fmt.Fprintln(os.Stdout, "child", child.Process.Pid)
		select {}
	}
	t.Parallel()
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	parent.Env = append(os.Environ(), parentVariable+"=1")
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := kit.StartChild(t, parent)
	pid := 0
	for lines := bufio.NewScanner(stdout); pid == 0 && lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "child "); ok {
			if pid, err = strconv.Atoi(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if pid == 0 || state(pid) != "T" {
		t.Fatalf("child %d is %q, want T", pid, state(pid))
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	kit.Eventually(t, 30*time.Second, "the child has ended", func() bool { return state(pid) == "" })
}
