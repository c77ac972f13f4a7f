package observability

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"gopkg.in/yaml.v3"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

const schemaURL = "https://opentelemetry.io/schemas/1.44.0"

// conventions are OpenTelemetry's, from model/messaging of version 1.44.0 of
// open-telemetry/semantic-conventions.
type conventions struct {
	Groups []struct {
		ID         string `yaml:"id"`
		Extends    string `yaml:"extends"`
		Attributes []struct {
			ID          string `yaml:"id"`
			Ref         string `yaml:"ref"`
			Requirement any    `yaml:"requirement_level"`
			Type        any    `yaml:"type"`
		} `yaml:"attributes"`
		MetricName string `yaml:"metric_name"`
		Instrument string `yaml:"instrument"`
		Unit       string `yaml:"unit"`
	} `yaml:"groups"`
}

func readConventions(t *testing.T, files ...string) (c conventions) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile("testdata/semconv/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var one conventions
		if err := yaml.Unmarshal(text, &one); err != nil {
			t.Fatal(err)
		}
		c.Groups = append(c.Groups, one.Groups...)
	}
	return c
}

// attributes returns the attributes of a group and of those that it extends, and whether they are
// required.
func (c conventions) attributes(id string) map[string]bool {
	all := map[string]bool{}
	for _, group := range c.Groups {
		if group.ID != id && group.ID != strings.TrimPrefix(id, "attributes.") {
			continue
		}
		for _, a := range group.Attributes {
			all[a.Ref] = a.Requirement == "required"
		}
		if group.Extends != "" {
			for name, required := range c.attributes(group.Extends) {
				all[name] = all[name] || required
			}
		}
	}
	return all
}

// The standard metrics have the names, kinds, units and attributes of OpenTelemetry's conventions,
// and so have the attributes of spans. Batches, attempts and handlers have links to the spans in
// which their messages were created.
func TestTelemetryFollowsTheConventions(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	topic := travelInBatch(w)

	var collected metricdata.ResourceMetrics
	if err := w.reader.Collect(t.Context(), &collected); err != nil {
		t.Fatal(err)
	}
	metrics := map[string]metricdata.Metrics{}
	for _, scope := range collected.ScopeMetrics {
		if scope.Scope.SchemaURL != schemaURL {
			t.Errorf("the schema of %s is %q", scope.Scope.Name, scope.Scope.SchemaURL)
		}
		for _, m := range scope.Metrics {
			if strings.HasPrefix(m.Name, "messaging.") {
				metrics[m.Name] = m
			}
		}
	}
	page, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	c := readConventions(t, "common.yaml", "metrics.yaml")
	for _, group := range c.Groups {
		if group.MetricName == "" {
			continue
		}
		m, ok := metrics[group.MetricName]
		if !ok {
			t.Errorf("%s is not exported", group.MetricName)
			continue
		}
		delete(metrics, group.MetricName)
		if i := read(m); i.kind != group.Instrument || i.unit != group.Unit {
			t.Errorf("%s is a %s in %s, want a %s in %s", m.Name, i.kind, i.unit, group.Instrument, group.Unit)
		}
		allowed := c.attributes(group.ID)
		for _, got := range attributesOf(m) {
			for key := range got {
				if _, ok := allowed[key]; !ok {
					t.Errorf("%s has the attribute %s", m.Name, key)
				}
			}
			for key, required := range allowed {
				if required && got[key] == "" {
					t.Errorf("%s has no %s: %v", m.Name, key, got)
				}
			}
			if got["messaging.system"] != "rabbitmq" || got["server.address"] == "" || got["server.port"] == "" {
				t.Errorf("%s has %v", m.Name, got)
			}
		}
		if !strings.Contains(string(page), "`"+m.Name+"`") {
			t.Errorf("docs/observability.md does not name %s", m.Name)
		}
	}
	for name := range metrics {
		t.Errorf("the conventions have no %s", name)
	}
	checkSpans(w, topic)
}

func attributesOf(m metricdata.Metrics) (all []map[string]string) {
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, point := range data.DataPoints {
			all = append(all, asText(point.Attributes.ToSlice()))
		}
	case metricdata.Histogram[float64]:
		for _, point := range data.DataPoints {
			all = append(all, asText(point.Attributes.ToSlice()))
		}
	}
	return all
}

// travelInBatch sends two messages in one call through the outbox and RabbitMQ to a handler that
// handles them together, and one to a queue that does not exist.
func travelInBatch(w *watch) (topic string) {
	w.Helper()
	db, box, broker := w.database(), w.outbox(), kit.Rabbit(w.T)
	topic = broker.Name("orders")
	w.declare(broker.URL, topic, nil)
	publisher := w.rabbit(queue(broker.URL), rabbit.PublisherConfig{})
	if err := publisher.Publish(broker.Name("nobody"), message.NewMessage("0", nil)); !errors.Is(err, rabbit.ErrReturned) {
		w.Error(err)
	}
	sub, err := rabbit.NewSubscriber(queue(broker.URL), rabbit.SubscriberConfig{MeterProvider: w.meters, Logger: &w.logs})
	if err != nil {
		w.Fatal(err)
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		MeterProvider: w.meters, TracerProvider: w.traces, Logger: &w.logs,
		Dedup: dedup.Config{Batch: dedup.Batch{Size: 2, Wait: 5 * time.Second}},
	})
	if err != nil {
		w.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		w.Fatal(err)
	}
	consumer.AddBatchHandler(router, "payments", topic, sub,
		func(context.Context, *sql.Tx, []*message.Message) ([]*message.Message, error) { return nil, nil })
	w.forward(db, publisher, forwarder.Config{})
	ctx, stop := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- once.Run(ctx, 0, router, sub) }()
	traced, service := w.traces.Tracer("service").Start(w.Context(), "service")
	w.publish(traced, db, box, topic, message.NewMessage("1", nil), message.NewMessage("2", nil))
	service.End()
	w.eventually("both messages are handled", func() bool { return len(w.named("handle "+topic)) == 2 })
	stop()
	if err := <-ended; err != nil {
		w.Error(err)
	}
	return topic
}

func checkSpans(w *watch, topic string) {
	w.Helper()
	registered, types := map[string]bool{"messaging.consumer.group.name": true}, []string{}
	for _, group := range readConventions(w.T, "registry.yaml").Groups {
		for _, a := range group.Attributes {
			registered[a.ID] = true
			if values, ok := a.Type.(map[string]any); ok && a.ID == "messaging.operation.type" {
				for _, member := range values["members"].([]any) {
					types = append(types, member.(map[string]any)["value"].(string))
				}
			}
		}
	}
	for _, span := range w.spans.GetSpans() {
		if span.Name == "service" {
			continue
		}
		if span.InstrumentationScope.SchemaURL != schemaURL {
			w.Errorf("the schema of %s is %q", span.Name, span.InstrumentationScope.SchemaURL)
		}
		got := attributes(span)
		for key := range got {
			if strings.HasPrefix(key, "messaging.") && !registered[key] {
				w.Errorf("%s has the attribute %s, which the conventions do not have", span.Name, key)
			}
		}
		if !slices.Contains(types, got["messaging.operation.type"]) {
			w.Errorf("%s is of type %q, want one of %q", span.Name, got["messaging.operation.type"], types)
		}
		if strings.HasPrefix(span.Name, "outbox.") {
			continue
		}
		if got["messaging.system"] != "rabbitmq" || got["server.address"] == "" {
			w.Errorf("%s has %v", span.Name, got)
		}
	}
	create, forwards := w.named("outbox.publish "+topic), w.named("forward "+topic)
	batch, handles := w.named("handle_batch "+topic), w.named("handle "+topic)
	if len(create) != 1 || len(forwards) != 2 || len(batch) != 1 || len(handles) != 2 {
		w.Fatalf("spans: %v", w.spans.GetSpans())
	}
	if count, ok := attributes(create[0])["messaging.batch.message_count"]; ok {
		w.Errorf("a create span has a count of messages: %s", count)
	}
	linked := func(span tracetest.SpanStub) (ids []string) {
		for _, l := range span.Links {
			ids = append(ids, l.SpanContext.SpanID().String())
		}
		return ids
	}
	for _, span := range forwards {
		if got := linked(span); !slices.Equal(got, []string{create[0].SpanContext.SpanID().String()}) {
			w.Errorf("an attempt to send has the links %q", got)
		}
	}
	sent := []string{forwards[0].SpanContext.SpanID().String(), forwards[1].SpanContext.SpanID().String()}
	slices.Sort(sent)
	count := attributes(batch[0])["messaging.batch.message_count"]
	if got := slices.Sorted(slices.Values(linked(batch[0]))); !slices.Equal(got, sent) || count != "2" {
		w.Errorf("the batch has the links %q, want %q, and %s messages", got, sent, count)
	}
	if got := slices.Sorted(slices.Values(slices.Concat(linked(handles[0]), linked(handles[1])))); !slices.Equal(got, sent) {
		w.Errorf("the handlers have the links %q, want %q", got, sent)
	}
}
