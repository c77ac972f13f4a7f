package testkit

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/watermill-once/once/internal/servers"
)

// StartChild starts a process, which is killed when the test ends. If this process ends
// earlier, for example by the timeout of go test, the child is killed then, even if
// SIGSTOP has stopped the child. Otherwise its open transactions would block other
// tests. The returned channel is closed when the child has ended. StartChild itself
// calls command.Wait, so do not call it.
func StartChild(t testing.TB, command *exec.Cmd) (ended <-chan struct{}) {
	t.Helper()
	ended, err := servers.StartChild(command, syscall.SIGKILL)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended already
		<-ended
	})
	return ended
}
