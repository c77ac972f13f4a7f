package servers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	osexec "os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
)

// holdVariable is the environment variable that makes this test program start servers
// and wait.
const holdVariable = "SERVERS_TEST_HOLD"

// held is what a process with holdVariable prints: the ids of the processes of its
// servers.
type held struct {
	Roots     []int  `json:"roots"`     // the first process of each server
	Processes []int  `json:"processes"` // all processes
	Error     string `json:"error"`
}

func (h *held) add(server interface{ Processes() []int }) {
	processes := server.Processes()
	h.Roots = append(h.Roots, processes[0])
	h.Processes = append(h.Processes, processes...)
}

// endThreads ends all threads of this process that no goroutine has locked. It locks
// each thread to a goroutine that ends. The servers must survive this.
func endThreads() {
	const count = 100 // more than the threads of the process
	var locked, ended sync.WaitGroup
	locked.Add(count)
	for range count {
		ended.Go(func() {
			runtime.LockOSThread()
			locked.Done()
			locked.Wait()
		})
	}
	ended.Wait()
}

// hold starts servers, prints their processes, and waits until it is killed.
func hold() {
	var h held
	ctx := context.Background()
	rabbit, err := servers.StartRabbit(ctx, servers.RabbitConfig{})
	if err != nil {
		h.Error = err.Error()
	} else {
		h.add(rabbit)
	}
	for _, freeze := range []bool{false, true} {
		postgres, err := servers.StartPostgres(ctx, servers.PostgresConfig{})
		if err != nil {
			h.Error = err.Error()
			continue
		}
		h.add(postgres)
		if freeze {
			postgres.Freeze()
		}
	}
	endThreads()
	report, _ := json.Marshal(h)
	fmt.Println(string(report))
	select {}
}

func TestServersDieWithAKilledProcess(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux sends a signal to a child when its parent ends")
	}
	holder := osexec.Command(os.Args[0])
	holder.Env = append(os.Environ(), holdVariable+"=1")
	holder.Stderr = os.Stderr
	stdout, err := holder.StdoutPipe()
	kit.OK(t, err)
	kit.OK(t, holder.Start())
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	kit.OK(t, err)
	var h held
	if err := json.Unmarshal(line, &h); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if h.Error != "" {
		t.Fatal(h.Error)
	}
	if left := servers.Left(h.Roots); len(left) != 3 {
		t.Fatalf("of the servers %v only %v run", h.Roots, left)
	}

	kit.OK(t, holder.Process.Kill())
	kit.Eventually(t, 30*time.Second, "the servers are gone", func() bool {
		return len(servers.Left(h.Processes)) == 0
	})
}
