package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

func TestDoctorLooksAtConsumersAndParkedRows(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		days := func(n int) string {
			if db.Dialect == "sqlite" {
				return fmt.Sprintf(`CAST(unixepoch('subsec') * 1000 AS INTEGER) - %d * 86400000`, n)
			}
			return fmt.Sprintf(`now() - %d * interval '1 day'`, n)
		}
		for _, query := range []string{
			`INSERT INTO once_consumers (topic, consumer, program, seen_at) VALUES ('orders', 'payments', 'shop', ` + days(3) + `)`,
			`INSERT INTO once_consumers (topic, consumer, seen_at) VALUES ('orders', 'mail', ` + days(0) + `)`,
			`INSERT INTO once_consumers (topic, consumer, embedded, seen_at) SELECT 'orders', 'old', NOT embedded, ` + days(9) +
				` FROM once_consumers WHERE consumer = 'mail'`,
			`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, finished_at)
				VALUES ('payments', 'orders', 'm', '', '', 'resolved', ` + days(50) + `, ` + days(50) + `)`,
		} {
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		out := object[doctorJSON](s, exitFound, "doctor")
		s.has(out, "consumers", `Consumer "payments" of topic "orders" was last seen 3d ago (program "shop")`)
		s.has(out, "consumers", "embedded.Transport.Forget")
		if n := len(found(out, "consumers")); n != 2 {
			t.Errorf("%d consumers are found", n)
		}
		s.has(out, "retention", "handled or discarded 50d ago are still in")
		s.says(strings.Join(out.Skipped, "\n"), "the broker: set ONCE_AMQP_URL")
		s.says(s.once(exitFound, "doctor"), "Not looked at: the broker: set ONCE_AMQP_URL.")
	})
}

func TestClocksThatDiffer(t *testing.T) {
	now := time.Now()
	for theirs, want := range map[time.Time]string{
		now: "", now.Add(4 * time.Second): "", now.Add(10 * time.Second): "differ by 9s", now.Add(-10 * time.Second): "differ by 10s",
	} {
		got := skewed(theirs, now, now.Add(time.Second))
		if len(got) == 0 != (want == "") || len(got) > 0 && !strings.Contains(got[0].What, want) {
			t.Errorf("%v: %+v", theirs.Sub(now), got)
		}
	}
}

// managed is a management API with one exchange and its queues.
func managed(t *testing.T, exchange string, queues map[string]string, nodes string) *httptest.Server {
	t.Helper()
	answers := map[string]string{"/api/overview": `{"rabbitmq_version":"4.1.0"}`, "/api/nodes": nodes}
	bindings := []string{}
	for name, queue := range queues {
		bindings = append(bindings, fmt.Sprintf(`{"destination":%q,"destination_type":"queue"}`, name))
		answers["/api/queues/%2F/"+name] = queue
	}
	answers["/api/exchanges/%2F/"+exchange+"/bindings/source"] = "[" + strings.Join(bindings, ",") + "]"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.EscapedPath()]
		user, password, _ := r.BasicAuth()
		switch {
		case user != "ann" || password != "pa55word":
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

// The doctor reads alarms and queues from the management API, and says so if it cannot.
func TestDoctorLooksAtTheQueues(t *testing.T) {
	db, broker := testkit.Postgres(t), testkit.Rabbit(t)
	s := newShell(t, db)
	s.env["ONCE_AMQP_URL"] = broker.URL
	topic := broker.Name("orders")
	commit(s, db, topic, "m1")
	uri, err := amqp091.ParseURI(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	if uri.Vhost != "/" { // the answers below are those of the default virtual host
		t.Logf("virtual host %q", uri.Vhost)
	}
	server := managed(t, topic, map[string]string{
		"drops":  `{"type":"quorum","arguments":{},"consumers":1}`,
		"keeps":  `{"type":"quorum","arguments":{"x-delivery-limit":-1},"consumers":1}`,
		"hasty":  `{"type":"classic","effective_policy_definition":{"consumer-timeout":60000},"consumers":1}`,
		"lonely": `{"type":"classic","consumers":0,"messages":7}`,
		"letter": `{"type":"quorum","arguments":{"x-dead-letter-exchange":"dlx"},"consumers":1}`,
	}, `[{"name":"rabbit@a","running":true,"mem_alarm":true,"disk_free_alarm":false},{"name":"rabbit@b","running":false}]`)
	d := &doctor{app: &app{}, db: database{DB: db.DB}, broker: brokerOptions{topology: topologyPubSub}}
	d.app.settings.amqpURL = "amqp://ann:pa55word@127.0.0.1:1/"
	d.app.settings.managementURL = server.URL
	found, err := d.alarms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`Node "rabbit@a" of the broker has a memory alarm`, `Node "rabbit@b" of the broker does not run`,
		`Queue "drops" has a delivery limit of 20`, `Queue "hasty" has a consumer timeout of 1m`,
		`Queue "lonely" has no consumer, and 7 messages`,
	} {
		if !slices.ContainsFunc(found, func(f finding) bool { return strings.Contains(f.What, text) }) {
			t.Errorf("no finding says %q: %+v", text, found)
		}
	}
	if len(found) != 5 {
		t.Errorf("%d findings: %+v", len(found), found)
	}

	// An exchange without a queue.
	d.app.settings.managementURL = managed(t, topic, nil, `[]`).URL
	found, err = d.alarms(t.Context())
	if err != nil || len(found) != 1 || !strings.Contains(found[0].What, "No queue is bound") {
		t.Errorf("%v, %+v", err, found)
	}

	// A wrong password, and a port without a server.
	s.env["ONCE_MANAGEMENT_URL"] = strings.Replace(server.URL, "//", "//ann:secret5@", 1)
	out := s.run(t.Context(), "doctor", "--json")
	s.says(out.stdout, "alarms and queues of the broker: the management API at", "401 Unauthorized")
	s.env["ONCE_MANAGEMENT_URL"] = "http://ann:secret5@127.0.0.1:1"
	out = s.run(t.Context(), "doctor")
	s.says(out.stdout, "Not looked at: alarms and queues of the broker")
	if strings.Contains(out.stdout+out.stderr, "secret5") {
		t.Errorf("the password is in the output\n%s", out.stdout)
	}
}
