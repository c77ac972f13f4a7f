package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

func TestClocksThatDiffer(t *testing.T) {
	now := time.Now()
	for theirs, want := range map[time.Time]string{
		now: "", now.Add(4 * time.Second): "", now.Add(10 * time.Second): "9s", now.Add(-10 * time.Second): "10s",
	} {
		var finds []finding
		if want != "" {
			finds = append(finds, finding{
				What: "The clocks of the database and of this machine differ by " + want + ".",
				Why: "The library uses the database's clock, so nothing breaks. But producers that delay messages (outbox.SetDueAt), " +
					"and people who compare logs with the tables, see another time.",
				Do: "Run a time service, such as chrony, on both machines.",
			})
		}
		same(t, theirs.Sub(now).String(), skewed(theirs, now, now.Add(time.Second)), finds...)
	}
}

// managed is a management API with one exchange and its queues. The answer "" stands for a
// lack of rights.
func managed(t *testing.T, exchange string, queues map[string]string, nodes string) *httptest.Server {
	t.Helper()
	answers := map[string]string{"/api/overview": `{"rabbitmq_version":"4.1.0"}`, "/api/nodes": nodes}
	bindings := []string{}
	for _, name := range sortedKeys(queues) {
		bindings = append(bindings, fmt.Sprintf(`{"destination":%q,"destination_type":"queue"}`, name))
		answers["/api/queues/%2F/"+name] = queues[name]
	}
	answers["/api/exchanges/%2F/"+exchange+"/bindings/source"] = "[" + strings.Join(bindings, ",") + "]"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.EscapedPath()]
		user, password, _ := r.BasicAuth()
		switch {
		case user != "ann" || password != "pa55word", ok && answer == "":
			w.WriteHeader(http.StatusUnauthorized)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = io.WriteString(w, answer)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// The doctor reads alarms and queues from the management API.
func TestDoctorLooksAtTheQueues(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Rabbit(t)
	s := newShell(t, db)
	topic := broker.Name("orders")
	commit(s, db, topic, "m1")
	d := &doctor{app: &app{}, db: database{DB: db.DB}, broker: brokerOptions{topology: topologyPubSub}}
	d.app.settings.amqpURL = "amqp://ann:pa55word@127.0.0.1:1/"
	alarms := func(server *httptest.Server) []finding {
		t.Helper()
		d.skipped, d.app.settings.managementURL = nil, server.URL
		found, err := d.alarms(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	const stops = "The broker stops reading from all connections that publish: forwarders wait, and the outbox grows."
	same(t, "alarms and queues", alarms(managed(t, topic, map[string]string{
		"drops":  `{"type":"quorum","arguments":{},"consumers":1}`,
		"keeps":  `{"type":"quorum","arguments":{"x-delivery-limit":-1},"consumers":1}`,
		"hasty":  `{"type":"classic","effective_policy_definition":{"consumer-timeout":60000},"consumers":1}`,
		"lonely": `{"type":"classic","consumers":0,"messages":7}`,
		"letter": `{"type":"quorum","arguments":{"x-dead-letter-exchange":"dlx"},"consumers":1}`,
	}, `[{"name":"rabbit@a","running":true,"mem_alarm":true,"disk_free_alarm":true},{"name":"rabbit@b","running":false}]`)),
		finding{
			What: `Node "rabbit@a" of the broker has a memory alarm.`, Why: stops,
			Do: "Let the consumers drain the queues, or raise vm_memory_high_watermark.",
		},
		finding{
			What: `Node "rabbit@a" of the broker has a disk alarm.`, Why: stops,
			Do: "Free disk space, or lower disk_free_limit.",
		},
		finding{
			What: `Node "rabbit@b" of the broker does not run.`,
			Why:  "A quorum queue needs a majority of its nodes. If another node stops, the queue may stop, too.",
			Do:   "Start the node, or remove it from the cluster: rabbitmqctl forget_cluster_node.",
		},
		finding{
			What: `Queue "drops" has a delivery limit of 20 and no dead-letter exchange.`,
			Why:  "The broker drops a message that comes back more often: a consumer that dies again and again loses it.",
			Do: `rabbitmqctl set_policy no-limit '^drops$' '{"delivery-limit":-1}' --apply-to queues, ` +
				`or declare a dead-letter exchange.`,
		},
		finding{
			What: `Queue "hasty" has a consumer timeout of 1m0s.`,
			Why: "The broker closes the channel of a consumer that leaves a message unacked for longer, as this library does while the " +
				"database is away: all unacked messages are then delivered again.",
			Do: "Raise consumer-timeout above 15m0s, or lower UnackedWait in the consumer.",
		},
		finding{
			What: `Queue "lonely" has no consumer, and 7 messages.`,
			Why:  "Nobody handles its messages. The queue grows until an alarm stops the broker.",
			Do:   "Start its consumer. If nobody needs the queue any more, delete it.",
		},
	)
	same(t, "an exchange without a queue", alarms(managed(t, topic, nil, `[]`)), finding{
		What: fmt.Sprintf("No queue is bound to the exchange of topic %q.", topic),
		Why:  "The broker refuses the messages of this topic until its consumers' queue exists.",
		Do:   "Start a consumer of the topic, which declares and binds its queue.",
	})
	if len(d.skipped) > 0 {
		t.Errorf("left out: %q", d.skipped)
	}

	same(t, "a user who may not read the nodes", alarms(managed(t, "another", nil, "")))
	const skipped = "alarms of the broker: the management API does not list the nodes (it answers 401 Unauthorized): " +
		"give the user the tag monitoring"
	if len(d.skipped) != 1 || d.skipped[0] != skipped {
		t.Errorf("left out %q, want %q", d.skipped, skipped)
	}
}

// The doctor says if it cannot read the management API, and does not show its password.
func TestDoctorSaysThatItCannotReadTheManagementAPI(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Rabbit(t)
	s := newShell(t, db)
	s.env["ONCE_AMQP_URL"] = broker.URL
	commit(s, db, broker.Name("orders"), "m1")
	server := managed(t, "orders", nil, "[]")
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ host, cause string }{
		"a wrong password":      {address.Host, "it answers 401 Unauthorized"},
		"a port without server": {"127.0.0.1:1", `Get "http://127.0.0.1:1/api/overview": dial tcp 127.0.0.1:1: connect: connection refused`},
	} {
		s.env["ONCE_MANAGEMENT_URL"] = "http://ann:secret5@" + c.host
		out := object[doctorJSON](s, exitFound, "doctor")
		want := "alarms and queues of the broker: the management API at " + c.host + " cannot be read (" + c.cause +
			"): enable the plugin rabbitmq_management, give the user the tag monitoring, or set --management-url"
		if len(out.Skipped) != 1 || out.Skipped[0] != want {
			t.Errorf("%s: left out %q, want %q", name, out.Skipped, want)
		}
		text := s.once(exitFound, "doctor")
		if !strings.Contains(text, "\nNot looked at: "+want+".\n") || strings.Contains(text, "secret5") {
			t.Errorf("%s: the doctor says\n%s", name, text)
		}
	}
}
