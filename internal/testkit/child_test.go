package testkit_test

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

	"github.com/watermill-once/once/internal/testkit"
)

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
		testkit.StartChild(t, child)
		if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, "the child is frozen", func() bool { return state(child.Process.Pid) == "T" })
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
	ended := testkit.StartChild(t, parent)
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
	testkit.Eventually(t, 30*time.Second, "the child has ended", func() bool { return state(pid) == "" })
}
