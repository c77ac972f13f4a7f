package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// mostLines is the maximum number of lines of Go code in the smallest example.
const mostLines = 150

func TestMinimalStaysSmall(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(source, "minimal", "*.go"))
	kit.OK(t, err)
	lines := 0
	for _, file := range files {
		content := kit.ReadFile(t, file)
		if !strings.HasSuffix(file, "_test.go") {
			lines += bytes.Count(content, []byte("\n"))
		}
	}
	if lines == 0 || lines > mostLines {
		t.Errorf("examples/minimal has %d lines of Go, want 1..%d", lines, mostLines)
	}
}

// An order that is placed at the copied service is paid once, and the service
// stops without an error when it is told to.
func TestMinimalRunsWhereItIsCopied(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	database, broker := kit.Postgres(t), kit.Rabbit(t)
	dir := copied(t, "minimal")
	runGo(t, dir, "vet", ".")
	runGo(t, dir, "build", "-ldflags", "-s -w", "-o", "shop", ".")

	addr := freeAddress(t)
	service := exec.Command(filepath.Join(dir, "shop"))
	service.Env = append(os.Environ(), "PG_DSN="+database.DSN, "AMQP_URL="+broker.URL, "ADDR="+addr)
	var output bytes.Buffer
	service.Stdout, service.Stderr = &output, &output
	kit.OK(t, service.Start())
	wait := sync.OnceValue(service.Wait)
	defer func() {
		_ = service.Process.Kill() // does nothing after the service has ended
		_ = wait()
		if t.Failed() {
			t.Logf("the service wrote:\n%s", output.String())
		}
	}()

	var id string
	kit.Eventually(t, time.Minute, "the service answers", func() bool {
		id = placeOrder(t.Context(), addr)
		return id != ""
	})
	payments := func() (n int) {
		query := `SELECT COUNT(*) FROM payments WHERE order_id = $1 AND amount = 1290`
		kit.OK(t, database.QueryRowContext(t.Context(), query, id).Scan(&n))
		return n
	}
	kit.Eventually(t, time.Minute, "the order is paid", func() bool { return payments() == 1 })

	kit.OK(t, service.Process.Signal(syscall.SIGTERM))
	if err := wait(); err != nil {
		t.Errorf("the service ended with %v", err)
	}
	if n := payments(); n != 1 {
		t.Errorf("%d payments for one order", n)
	}
}

// placeOrder places an order at the service. It returns the order's id, or "" if the service did
// not answer.
func placeOrder(ctx context.Context, addr string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/orders", strings.NewReader(`{"amount":1290}`))
	if err != nil {
		return ""
	}
	request.Close = true // leaves no goroutine behind
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var order struct {
		ID string `json:"id"`
	}
	if response.StatusCode != http.StatusCreated || json.NewDecoder(response.Body).Decode(&order) != nil {
		return ""
	}
	return order.ID
}

// freeAddress returns an address at which no program listened a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	kit.OK(t, err)
	defer listener.Close()
	return listener.Addr().String()
}
