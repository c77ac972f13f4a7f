package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/schema"
)

// victim is the service in another process, with its clients and databases.
type victim struct {
	*testing.T

	binary string
	args   []string
	lease  time.Duration
	tables schema.Config
	db     *sql.DB
	mail   *sql.DB
	broker bool

	replayed bool // replayCrashed has replayed a message

	process *exec.Cmd
	stderr  bytes.Buffer
	address atomic.Value // a string, which changes at each start

	mu      sync.Mutex
	journal map[string]string // order ids in the answers that clients got, by Idempotency-Key
}

// shortLease is shorter than the time between two kills. With a longer lease, each
// process would only wait until the lease of the previous process expires.
const shortLease = 500 * time.Millisecond

// longLease is long enough for a slow machine. With a shorter lease, messages would be
// handled again and again.
const longLease = 5 * time.Second

func newVictim(t *testing.T, binary string, db, mail service.Database, args ...string) *victim {
	t.Helper()
	args = append(args, "-addr", "127.0.0.1:0")
	v := &victim{
		T: t, binary: binary, args: args, lease: shortLease, tables: db.Tables,
		db: pool(t, db), mail: pool(t, mail), journal: map[string]string{},
	}
	v.broker = slices.Contains(args, "-amqp")
	t.Cleanup(func() {
		if v.process != nil {
			v.kill()
		}
		if t.Failed() {
			t.Logf("the service's log:\n%s", v.stderr.String())
		}
	})
	return v
}

// start starts the service and waits until it listens.
func (v *victim) start() {
	v.Helper()
	v.process = exec.Command(v.binary, slices.Concat(v.args, []string{"-lease", v.lease.String()})...)
	v.process.Stderr = &v.stderr
	stdout, err := v.process.StdoutPipe()
	if err != nil {
		v.Fatal(err)
	}
	if err := v.process.Start(); err != nil {
		v.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if _, address, found := strings.Cut(lines.Text(), "http://"); found {
			v.address.Store(address)
			return
		}
	}
	v.Fatalf("the service did not start: %v", v.process.Wait())
}

// kill kills the service with SIGKILL.
func (v *victim) kill() {
	_ = v.process.Process.Kill()
	_ = v.process.Wait() // the error says that the process was killed
}

// clients starts clients that place orders. The returned function stop stops the
// clients, and returns when each client has got its last answer.
func (v *victim) clients() (stop func()) {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, v.address.Load().(string))
	}}
	client := demo.Client{URL: "http://orders", HTTP: &http.Client{Transport: transport, Timeout: 5 * time.Second}}
	enough := make(chan struct{})
	var ordering sync.WaitGroup
	for c := range 4 {
		ordering.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("client-%d-%d", c, n)
				id, err := client.Place(v.Context(), key, someOrder(n))
				if err != nil {
					v.Errorf("key %s: %v", key, err)
					return
				}
				v.mu.Lock()
				v.journal[key] = id
				v.mu.Unlock()
				select {
				case <-enough:
					return
				case <-time.After(30 * time.Millisecond): // a customer needs some time
				}
			}
		})
	}
	return func() {
		close(enough)
		ordering.Wait()
		transport.CloseIdleConnections()
	}
}

// placed returns how many orders the clients have placed.
func (v *victim) placed() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.journal)
}

func someOrder(n int) []byte {
	second := "cake"
	if n%7 == 0 {
		second = "unicorn" // sold out
	}
	body, err := json.Marshal(service.NewOrder{
		Shop: "berlin", Customer: fmt.Sprintf("customer %d", n), Currency: "EUR",
		Lines: []service.Line{{SKU: "tea", Quantity: int64(1 + n%5), UnitPrice: 450}, {SKU: second, Quantity: 1, UnitPrice: 390}},
	})
	if err != nil {
		panic(err) // encoding an order cannot fail
	}
	return body
}
