package forwarding

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// Trap 27. The address of the database leads to a standby while a forwarder has its slots: directly, and
// through a pooler that nobody restarts. The forwarder sends nothing, because it could not delete the
// rows, also if it reads in a transaction (here because a topic is paused). At the primary it goes on,
// and every message is sent once. The same holds while the primary is read-only.
func TestNothingIsSentFromAReadOnlyServer(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		for _, driver := range []string{"libpq", "pgx"} {
			name := driver
			if pooled {
				name += " through pgbouncer"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				nothingIsSentFromAReadOnlyServer(t, driver, pooled)
			})
		}
	}
}

func nothingIsSentFromAReadOnlyServer(t *testing.T, driver string, pooled bool) {
	t.Helper()
	primary := kit.PrivatePostgres(t)
	standby := kit.Standby(t, primary, false)
	address, p := through(t, primary.DSN("postgres"), func(server string) *proxy { return newProxy(t, server, postgresMessage) })
	lead := func(server string) error { p.lead(server); return nil }
	if pooled {
		pooler := kit.PrivatePgbouncer(t, primary)
		lead = pooler.Lead
		address, p = through(t, pooler.DSN("postgres"), func(server string) *proxy { return newProxy(t, server, postgresMessage) })
		address += "&default_query_exec_mode=exec"
	}
	var statements atomic.Int64
	p.cut(func(m relayed) action {
		if m.toServer && (m.bytes[0] == 'Q' || m.bytes[0] == 'P') {
			statements.Add(1)
		}
		return pass
	})

	f := newFlow(t, openDB(t, primary.DSN("postgres")+"&default_transaction_read_only=off"), kit.Rabbit(t).URL)
	channel := f.admin()
	if driver == "libpq" {
		address, _, _ = strings.Cut(address, "&default_query_exec_mode")
	}
	db, err := kit.Drivers[driver](address)
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	f.forward(db, toQueues(f.url), unhurried(f.log))

	sent := 0
	// nothing checks that the forwarder reads the rows, and sends none of them.
	nothing := func(where string, readable func() bool) {
		f.put(10)
		f.eventually("the rows can be read: "+where, readable)
		before := statements.Load()
		f.eventually("the forwarder reads: "+where, func() bool {
			return statements.Load() > before+4 || f.waiting(channel, f.queue) > sent
		})
		if n := f.waiting(channel, f.queue); n > sent {
			t.Errorf("%d messages were sent: %s", n-sent, where)
		}
	}
	everything := func() {
		f.drained()
		sent = f.waiting(channel, f.queue)
	}
	copied := openDB(t, standby.DSN("postgres"))
	replicated := func() bool {
		var n int
		err := copied.QueryRowContext(t.Context(), `SELECT count(*) FROM once_outbox`).Scan(&n)
		return err == nil && n == 10
	}
	for _, reads := range []string{"without a transaction", "in a transaction"} {
		if reads == "in a transaction" {
			f.exec(`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'another', 'test', 'test')`)
		}
		f.put(10)
		everything()
		kit.OK(t, lead(standby.Address()))
		f.exec(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
		nothing(fmt.Sprintf("a standby, read %s", reads), replicated)
		kit.OK(t, lead(primary.Address()))
		everything()

		f.exec(`ALTER SYSTEM SET default_transaction_read_only = on`)
		f.exec(`SELECT pg_reload_conf()`)
		f.eventually("every transaction on the primary is read-only", func() bool { // those that have begun before are not
			return kit.One[bool](t, openDB(t, primary.DSN("postgres")), `SELECT current_setting('default_transaction_read_only') = 'on'
				AND NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND xact_start <= pg_conf_load_time())`)
		})
		nothing(fmt.Sprintf("a read-only primary, read %s", reads), func() bool { return true })
		f.exec(`ALTER SYSTEM RESET default_transaction_read_only`)
		f.exec(`SELECT pg_reload_conf()`)
		everything()
	}

	primary.Kill()
	kit.OK(t, standby.Promote(t.Context()))
	kit.OK(t, lead(standby.Address()))
	f.db = copied
	f.eventually("the promoted standby has the slots of the forwarder", func() bool {
		return f.count(`once_outbox`) == 0 && f.count(`once_slots WHERE lease_until > now()`) == 64
	})
	f.put(10)
	if copies := f.complete(); copies > 0 {
		t.Errorf("%d messages were sent twice", copies)
	}
}
