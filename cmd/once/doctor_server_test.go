package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/watermill-once/once/internal/testkit"
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
	server := testkit.PrivatePostgres(t, "max_connections=10", "autovacuum=off", "max_prepared_transactions=1",
		"wal_level=logical", "max_slot_wal_keep_size=1MB", "wal_sender_timeout=0")
	dsn := server.DSN("postgres")
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := schema.Up(t.Context(), db, schema.Config{}); err != nil {
		t.Fatal(err)
	}
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
	testkit.Eventually(s.T, 30*time.Second, "the server is as sick as expected", func() bool {
		var err error
		if got, err = look(s.Context()); err != nil {
			s.Fatal(err)
		}
		return slices.Equal(got, want)
	})
}

// The doctor finds each problem of a server. The checks share a server, because a start
// takes a second.
func TestDoctorLooksAtTheServer(t *testing.T) {
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
		if err != nil {
			s.Fatal(err)
		}
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
	if err != nil {
		s.Fatal(err)
	}
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
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = replica.Close(context.WithoutCancel(s.Context())) }()
	var position string
	if err := s.QueryRowContext(s.Context(), `SELECT restart_lsn FROM pg_replication_slots`).Scan(&position); err != nil {
		s.Fatal(err)
	}
	replica.Frontend().SendQuery(&pgproto3.Query{String: `START_REPLICATION SLOT "replica" PHYSICAL ` + position})
	if err := replica.Frontend().Flush(); err != nil {
		s.Fatal(err)
	}
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
