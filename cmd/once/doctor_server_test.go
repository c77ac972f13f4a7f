package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// sickServer is a private server with problems that would disturb other tests.
type sickServer struct {
	*testing.T
	*sql.DB

	dsn    string
	doctor *doctor
}

func newSickServer(t *testing.T) *sickServer {
	t.Helper()
	server := kit.PrivatePostgres(t, "max_connections=10", "autovacuum=off", "max_prepared_transactions=1",
		"wal_level=logical", "max_slot_wal_keep_size=1MB", "wal_sender_timeout=0")
	dsn := server.DSN("postgres")
	db, err := sql.Open("postgres", dsn)
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	return &sickServer{t, db, dsn, &doctor{
		app: &app{}, db: database{DB: db, tables: schema.Config{}.WithDefaults()}, tooOld: time.Second, deadRows: 20,
	}}
}

func (s *sickServer) exec(queries ...string) {
	s.Helper()
	for _, query := range queries {
		if _, err := s.ExecContext(s.Context(), query); err != nil {
			s.Fatalf("%s: %v", query, err)
		}
	}
}

func (s *sickServer) number(query string) (n int) {
	s.Helper()
	if err := s.QueryRowContext(s.Context(), query).Scan(&n); err != nil {
		s.Fatalf("%s: %v", query, err)
	}
	return n
}

// finds waits until a check finds exactly want. The server publishes its counts with a
// delay.
func (s *sickServer) finds(look func(ctx context.Context) ([]finding, error), want ...finding) {
	s.Helper()
	var got []finding
	defer func() { same(s.T, "a sick server", got, want...) }()
	kit.Eventually(s.T, 30*time.Second, "the server is as sick as expected", func() bool {
		var err error
		got, err = look(s.Context())
		kit.OK(s, err)
		return slices.Equal(got, want)
	})
}

// The doctor finds each problem of a server. The checks share a server, because a start
// takes a second.
func TestDoctorLooksAtTheServer(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	s := newSickServer(t)
	s.connections()
	s.preparedTransactions()
	s.deadRows()
	s.replicationSlots()
	s.oldRows()
}

func (s *sickServer) connections() {
	s.Helper()
	s.finds(s.doctor.connections)
	for range 6 { // the server has 10 connections and reserves 3 of them; one is left for the doctor
		conn, err := s.Conn(s.Context())
		kit.OK(s, err)
		defer conn.Close()
	}
	s.finds(s.doctor.connections, finding{
		What: "7 of 7 connections of the server are used.",
		Why:  "When all are used, services cannot connect: handlers, forwarders and leases wait.",
		Do:   "Make the pools of the services smaller (SetMaxOpenConns), use a pooler, or raise max_connections.",
	})
}

func (s *sickServer) preparedTransactions() {
	s.Helper()
	conn, err := s.Conn(s.Context())
	kit.OK(s, err)
	defer conn.Close()
	for _, query := range []string{`BEGIN`, `PREPARE TRANSACTION 'forgotten'`} {
		if _, err := conn.ExecContext(s.Context(), query); err != nil {
			s.Fatalf("%s: %v", query, err)
		}
	}
	s.finds(s.doctor.transactions, finding{
		What: "1 prepared transaction is older than 1s.",
		Why:  "They hold locks and keep vacuum from freeing rows, also after a restart.",
		Do:   "List them with SELECT * FROM pg_prepared_xacts, and end each with COMMIT PREPARED or ROLLBACK PREPARED.",
	})
	s.exec(`ROLLBACK PREPARED 'forgotten'`) // a new logical slot would wait for it
}

func (s *sickServer) deadRows() {
	s.Helper()
	off := finding{
		What: "autovacuum is off.",
		Why:  "The rows of messages that were sent or handled are never freed: tables and indexes grow, and every query slows down.",
		Do:   "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
	}
	s.finds(s.doctor.bloat, off)
	s.exec(`INSERT INTO once_inbox (message_id, consumer, digest) SELECT n::text, 'payments', '' FROM generate_series(1, 24) AS n`,
		`DELETE FROM once_inbox WHERE message_id <> '1'`)
	s.finds(s.doctor.bloat, off, finding{
		What: `Table "once_inbox" has 1 row, and 23 dead rows that vacuum has not freed.`,
		Why:  "Reading the table takes as long as if the dead rows were there.",
		Do: "End what holds vacuum back: see the checks transactions and replication. Then VACUUM the table. If it stays large, " +
			"run pg_repack, or VACUUM FULL while no service runs.",
	})
}

func (s *sickServer) replicationSlots() {
	s.Helper()
	s.exec(`CHECKPOINT`, `SELECT pg_create_physical_replication_slot('replica', true)`)
	const (
		why = "The server keeps all WAL since the slot's position. When the disk is full, every commit fails."
		do  = "Start its replica or reader again. If the reader no longer exists: SELECT pg_drop_replication_slot('replica')."
	)
	s.finds(s.doctor.replication, finding{
		What: `Replication slot "replica" is not used, and the server keeps 0 MB of WAL for it.`, Why: why, Do: do,
	})

	// A replica that reads nothing falls behind.
	replica, err := pgconn.Connect(s.Context(), s.dsn+"&replication=true")
	kit.OK(s, err)
	defer func() { _ = replica.Close(context.WithoutCancel(s.Context())) }()
	position := kit.One[string](s, s, `SELECT restart_lsn FROM pg_replication_slots`)
	replica.Frontend().SendQuery(&pgproto3.Query{String: `START_REPLICATION SLOT "replica" PHYSICAL ` + position})
	kit.OK(s, replica.Frontend().Flush())
	if answer, err := replica.ReceiveMessage(s.Context()); err != nil {
		s.Fatalf("%T, %v", answer, err)
	}
	for range 3 {
		s.exec(`SELECT pg_logical_emit_message(false, 'test', '')`, `SELECT pg_switch_wal()`)
	}
	behind := s.number(`SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint >> 20 FROM pg_replication_slots`)
	if behind < 16 {
		s.Fatalf("the slot is only %d MB behind", behind)
	}
	s.finds(s.doctor.replication, finding{
		What: fmt.Sprintf(`Replication slot "replica" is too far behind (unreserved), and the server keeps %d MB of WAL for it.`, behind),
		Why:  why, Do: do,
	})
}

func (s *sickServer) oldRows() {
	s.Helper()
	s.exec(`SELECT pg_create_logical_replication_slot('reader', 'pgoutput')`, `SELECT txid_current()`, `SELECT txid_current()`)
	old := s.number(`SELECT age(catalog_xmin) FROM pg_replication_slots WHERE slot_name = 'reader'`)
	if old < 2 {
		s.Fatalf("the slot keeps rows of %d transactions", old)
	}
	s.doctor.oldRows = old
	s.finds(s.doctor.horizons)
	s.doctor.oldRows = old - 1
	s.finds(s.doctor.horizons, finding{
		What: fmt.Sprintf(`Replication slot "reader" keeps rows that were deleted up to %d transactions ago.`, old),
		Why:  "Vacuum cannot free them, so the outbox grows although it is empty.",
		Do:   "Find out why the replica lags behind: a long query there with hot_standby_feedback, or a reader that has stopped.",
	})
}

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
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	s := newShell(t, db)
	topic := broker.Name("orders")
	commit(s, db, topic, "m1")
	d := &doctor{app: &app{}, db: database{DB: db.DB}, broker: brokerOptions{topology: topologyPubSub}}
	d.app.settings.amqpURL = "amqp://ann:pa55word@127.0.0.1:1/"
	alarms := func(server *httptest.Server) []finding {
		t.Helper()
		d.skipped, d.app.settings.managementURL = nil, server.URL
		found, err := d.alarms(t.Context())
		kit.OK(t, err)
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
	kit.Long(t)
	t.Parallel()
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	s := newShell(t, db)
	s.env["ONCE_AMQP_URL"] = broker.URL
	commit(s, db, broker.Name("orders"), "m1")
	server := managed(t, "orders", nil, "[]")
	address, err := url.Parse(server.URL)
	kit.OK(t, err)
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
