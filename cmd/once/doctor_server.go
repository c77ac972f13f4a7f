package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

func (d *doctor) connections(ctx context.Context) ([]finding, error) {
	var used, most int
	err := d.db.QueryRowContext(ctx, `SELECT (SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
		current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int`).Scan(&used, &most)
	if err != nil || used*10 < most*8 {
		return nil, err
	}
	return []finding{{
		What: fmt.Sprintf("%d of %d connections of the server are used.", used, most),
		Why:  "When all are used, services cannot connect: handlers, forwarders and leases wait.",
		Do:   "Make the pools of the services smaller (SetMaxOpenConns), use a pooler, or raise max_connections.",
	}}, nil
}

func (d *doctor) transactions(ctx context.Context) (found []finding, err error) {
	rows, err := d.db.QueryContext(ctx, `
		SELECT pid, COALESCE(usename, ''), COALESCE(application_name, ''), COALESCE(state, ''),
		       EXTRACT(EPOCH FROM now() - xact_start)::bigint, COALESCE(EXTRACT(EPOCH FROM now() - state_change)::bigint, 0)
		FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
		  AND (now() - xact_start > $1 * interval '1 second'
		       OR state LIKE 'idle in transaction%' AND now() - state_change > $2 * interval '1 second')
		ORDER BY xact_start LIMIT 20`, d.tooOld.Seconds(), d.idleTooLong.Seconds())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var pid, open, idle int
		var user, program, state string
		if err := rows.Scan(&pid, &user, &program, &state, &open, &idle); err != nil {
			return nil, err
		}
		found = append(found, finding{
			What: fmt.Sprintf("Session %d of user %q (program %q) has a transaction that is %s old; the session is %s for %s.",
				pid, user, program, age(time.Duration(open)*time.Second), state, age(time.Duration(idle)*time.Second)),
			Why: "If it has written, forwarders wait for it before they read later rows. It keeps vacuum from freeing rows, so the outbox grows.",
			Do:  fmt.Sprintf("Find out what the program waits for. To end it: SELECT pg_terminate_backend(%d).", pid),
		})
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	prepared, err := d.prepared(ctx)
	return append(found, prepared...), err
}

// Prepared transactions hold locks until somebody ends them, even after a restart of the server.
func (d *doctor) prepared(ctx context.Context) ([]finding, error) {
	var n int
	err := d.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM pg_prepared_xacts WHERE now() - prepared > $1 * interval '1 second'`,
		d.tooOld.Seconds()).Scan(&n)
	if err != nil || n == 0 {
		return nil, err
	}
	return []finding{{
		What: counted(n, "prepared transaction is", "prepared transactions are") + " older than " + age(d.tooOld) + ".",
		Why:  "They hold locks and keep vacuum from freeing rows, also after a restart.",
		Do:   "List them with SELECT * FROM pg_prepared_xacts, and end each with COMMIT PREPARED or ROLLBACK PREPARED.",
	}}, nil
}

func (d *doctor) replication(ctx context.Context) (found []finding, err error) {
	rows, err := d.db.QueryContext(ctx, `
		SELECT slot_name, active, COALESCE(wal_status, ''),
		       COALESCE(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
		                                restart_lsn), 0)::bigint
		FROM pg_replication_slots WHERE NOT active OR wal_status IN ('unreserved', 'lost') ORDER BY slot_name`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name, status string
		var active bool
		var behind int64
		if err := rows.Scan(&name, &active, &status, &behind); err != nil {
			return nil, err
		}
		state := "is not used"
		if active {
			state = "is too far behind (" + status + ")"
		}
		found = append(found, finding{
			What: fmt.Sprintf("Replication slot %q %s, and the server keeps %d MB of WAL for it.", name, state, behind>>20),
			Why:  "The server keeps all WAL since the slot's position. When the disk is full, every commit fails.",
			Do:   fmt.Sprintf("Start its replica or reader again. If the reader no longer exists: SELECT pg_drop_replication_slot('%s').", name),
		})
	}
	return found, rows.Err()
}

const largestSkew = 5 * time.Second

func (d *doctor) clocks(ctx context.Context) ([]finding, error) {
	if d.db.sqlite() {
		return nil, nil // one machine, one clock
	}
	var millis int64
	before := time.Now()
	if err := d.db.QueryRowContext(ctx, `SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS bigint)`).Scan(&millis); err != nil {
		return nil, err
	}
	return skewed(time.UnixMilli(millis), before, time.Now()), nil
}

// theirs was read between before and after, times of this machine.
func skewed(theirs, before, after time.Time) []finding {
	var off time.Duration
	switch {
	case theirs.Before(before.Add(-largestSkew)):
		off = before.Sub(theirs)
	case theirs.After(after.Add(largestSkew)):
		off = theirs.Sub(after)
	default:
		return nil
	}
	return []finding{{
		What: fmt.Sprintf("The clocks of the database and of this machine differ by %s.", age(off)),
		Why: "The library uses the database's clock, so nothing breaks. But producers that delay messages (outbox.SetDueAt), and people who " +
			"compare logs with the tables, see another time.",
		Do: "Run a time service, such as chrony, on both machines.",
	}}
}

const bloatShare = 5

// Dead rows accumulate if vacuum is too slow, or autovacuum is off.
func (d *doctor) bloat(ctx context.Context) (found []finding, err error) {
	var off bool
	if err := d.db.QueryRowContext(ctx, `SELECT current_setting('autovacuum') = 'off'`).Scan(&off); err != nil {
		return nil, err
	}
	if off {
		found = append(found, finding{
			What: "autovacuum is off.",
			Why:  "The rows of messages that were sent or handled are never freed: tables and indexes grow, and every query slows down.",
			Do:   "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
		})
	}
	for _, name := range []string{"outbox", "parked", "inbox"} {
		var live, dead int
		err := d.db.QueryRowContext(ctx, `SELECT COALESCE(SUM(n_live_tup), 0), COALESCE(SUM(n_dead_tup), 0) FROM pg_stat_user_tables
			WHERE relid = to_regclass($1)`, d.db.table(name)).Scan(&live, &dead)
		if err != nil {
			return found, err
		}
		if dead >= d.deadRows && dead > bloatShare*live {
			found = append(found, finding{
				What: fmt.Sprintf("Table %s has %s, and %s that vacuum has not freed.", d.db.table(name),
					counted(live, "row", "rows"), counted(dead, "dead row", "dead rows")),
				Why: "Reading the table takes as long as if the dead rows were there.",
				Do: "End what holds vacuum back: see the checks transactions and replication. Then VACUUM the table. If it stays large, " +
					"run pg_repack, or VACUUM FULL while no service runs.",
			})
		}
	}
	return found, nil
}

// These slots keep vacuum from removing old rows. They have no session, so the check "transactions"
// does not find them.
func (d *doctor) horizons(ctx context.Context) (found []finding, err error) {
	rows, err := d.db.QueryContext(ctx, `SELECT slot_name, GREATEST(age(xmin), age(catalog_xmin)) FROM pg_replication_slots
		WHERE GREATEST(age(xmin), age(catalog_xmin)) > $1 ORDER BY slot_name`, d.oldRows)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var old int64
		if err := rows.Scan(&name, &old); err != nil {
			return nil, err
		}
		found = append(found, finding{
			What: fmt.Sprintf("Replication slot %q keeps rows that were deleted up to %d transactions ago.", name, old),
			Why:  "Vacuum cannot free them, so the outbox grows although it is empty.",
			Do:   "Find out why the replica lags behind: a long query there with hot_standby_feedback, or a reader that has stopped.",
		})
	}
	return found, rows.Err()
}

const unseenFor = 24 * time.Hour

func (d *doctor) consumers(ctx context.Context) (found []finding, err error) {
	rows, err := d.db.QueryContext(ctx, `SELECT topic, consumer, embedded, program, `+d.db.seconds("seen_at")+` AS unseen FROM `+
		d.db.table("consumers")+` ORDER BY consumer, topic`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var topic, consumer, program string
		var embedded bool
		var seconds int64
		if err := rows.Scan(&topic, &consumer, &embedded, &program, &seconds); err != nil {
			return nil, err
		}
		unseen := time.Duration(seconds) * time.Second
		if unseen < unseenFor {
			continue
		}
		by := ""
		if program != "" {
			by = fmt.Sprintf(" (program %q)", program)
		}
		f := finding{
			What: fmt.Sprintf("Consumer %q of topic %q was last seen %s ago%s.", consumer, topic, age(unseen), by),
			Why:  "Its parked messages wait, and nobody handles new ones.",
			Do:   "Start the program. If the consumer was retired, nothing needs to be done.",
		}
		if embedded {
			f.Why = "The embedded transport stores every message of the topic for it, so its rows grow for ever."
			f.Do = "Start the program. If the consumer was retired, call embedded.Transport.Forget."
		}
		found = append(found, f)
	}
	return found, rows.Err()
}

func (d *doctor) parkedRetention(ctx context.Context) ([]finding, error) {
	var oldest *int64
	err := d.db.QueryRowContext(ctx, `SELECT `+d.db.seconds("finished_at")+` FROM `+d.db.table("parked")+
		` WHERE state IN ('resolved', 'discarded') AND finished_at IS NOT NULL ORDER BY finished_at LIMIT 1`).Scan(&oldest)
	if errors.Is(err, sql.ErrNoRows) || err == nil && (oldest == nil || time.Duration(*oldest)*time.Second < d.retention+slack) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []finding{{
		What: fmt.Sprintf("Messages that were handled or discarded %s ago are still in %s; the retention is %s.",
			age(time.Duration(*oldest)*time.Second), d.db.table("parked"), age(d.retention)),
		Why: "If nothing removes them, the table grows for ever. Messages of a replay that has not finished are kept on purpose.",
		Do:  "Run a service with once.Consumer, or once sweep from cron. Finish replays: once replays list.",
	}}, nil
}
