package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/examples/orders/internal/testenv"
)

var address = regexp.MustCompile(`orders: (http://\S+)`)

// GET /metrics returns the metrics of the library. The spans of requests and consumers
// are sent to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names.
func TestMetricsAndTraces(t *testing.T) {
	var received buffer
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" {
			_, _ = io.Copy(&received, r.Body)
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stdout, stderr buffer
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"-addr", "127.0.0.1:0", "-orders", "5"}, &stdout, &stderr) }()
	testenv.Eventually(t, 3*time.Minute, "the demo has ended", func() bool {
		return strings.Contains(stdout.String(), "orders=5 lost=0")
	})

	url := address.FindStringSubmatch(stdout.String())[1]
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true // so that no goroutine is left
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	metrics, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("status %d, error %v", response.StatusCode, err)
	}
	for _, line := range []string{
		`once_outbox_published_total{once_outcome="stored"} `,
		`# TYPE once_forwarder_lag_seconds gauge`,
		`target_info{service_name="orders"`,
	} {
		if !bytes.Contains(metrics, []byte(line)) {
			t.Errorf("%s is not in\n%s", line, metrics)
		}
	}

	stop()
	if status := <-ended; status != statusOK {
		t.Errorf("status %d\n%s", status, stderr.String())
	}
	for _, name := range []string{"POST /orders", "payments"} {
		if !strings.Contains(received.String(), name) {
			t.Errorf("the collector got no span %s", name)
		}
	}
}
