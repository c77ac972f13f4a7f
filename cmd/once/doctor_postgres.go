package main

import (
	"context"
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

// prepared finds old prepared transactions. They hold locks until somebody ends them;
// even a restart of the server does not end them.
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
