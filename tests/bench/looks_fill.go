package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// failureGroups is the number of causes of failures. One cause has half of the entries.
const failureGroups = 20

// mark is the tenant of the marked rows, and the value of some of their other columns.
// The marked rows are a few rows that searches must find. They are the last rows of a
// table. Their times are a year ahead, except in the sent log.
const (
	mark   = "marked"
	marked = 5
	aYear  = 365 * 24 * time.Hour
)

// popular is the causation id of half of the sent messages.
const popular = "popular"

// backlog is the number of messages that wait for each consumer with a backlog.
const backlog = 1500

// fillEntries inserts the given number of entries into the quarantine, and the same number of dead
// letters.
func fillEntries(ctx context.Context, db *database, entries int) error {
	cause := fmt.Sprintf(`CASE WHEN n %% 2 = 0 THEN 0 ELSE n / 2 %% %d + 1 END`, failureGroups-1)
	for _, query := range []string{
		`INSERT INTO once_parked (consumer, topic, message_id, tenant, event_type, aggregate_type, digest, envelope, state, due_at, attempts,
			reason, error, error_type, fingerprint, first_failed_at, last_failed_at)
		 SELECT 'other', 'others', 'old-' || n, 'tenant-' || n % 1000, 'event-' || n % 10, 'type-' || n % 20, '',
			convert_to(repeat('x', 300), 'UTF8'),
			'quarantined', now(), 3, 'exhausted', 'cause ' || ` + cause + `, '*errors.errorString', md5((` + cause + `)::text), now(), now()
		 FROM generate_series(1, $1::bigint) AS n`,
		`UPDATE once_parked SET message_id = CASE WHEN id = $1 THEN '` + mark + `' ELSE message_id END,
			tenant = '` + mark + `', event_type = '` + mark + `', aggregate_type = '` + mark + `', error_type = '` + mark + `',
			last_failed_at = now() + interval '1 year' WHERE id > $1 - 5`,
		`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown, tenant,
			aggregate_type)
		 SELECT n, 'dead-' || n, 'others', convert_to(repeat('x', 300), 'UTF8'), '{}', now(), 20, 'cause ' || ` + cause + `, 'exhausted', false,
			'tenant-' || n % 1000, 'type-' || n % 20
		 FROM generate_series(1, $1::bigint) AS n`,
		`UPDATE once_outbox_dead SET tenant = '` + mark + `', aggregate_type = '` + mark + `', last_error = '` + mark + `',
			died_at = now() + interval '1 year' WHERE id > $1 - 5`,
	} {
		if _, err := db.ExecContext(ctx, query, entries); err != nil {
			return err
		}
	}
	return errors.Join(fillSentLog(ctx, db, entries), vacuum(ctx, db, "once_parked", "once_outbox_dead", "once_outbox_sent"))
}

// fillSentLog puts messages of the last 30 days into the sent log. The last messages,
// from the last seconds, are marked. Each of them was caused by the message before it.
func fillSentLog(ctx context.Context, db *database, messages int) error {
	_, err := db.ExecContext(ctx, `
		INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at, tenant, aggregate_type, aggregate_id,
			causation_id)
		SELECT n, 'sent-' || n, 'others', convert_to(repeat('x', 300), 'UTF8'), '{}', at, at,
			CASE WHEN last THEN '`+mark+`' ELSE 'tenant-' || n % 1000 END,
			'type-' || n % 20, CASE WHEN last THEN '`+mark+`' ELSE 'aggregate-' || n % 200000 END,
			CASE WHEN n % 2 = 0 AND NOT last THEN '`+popular+`' ELSE 'sent-' || n - 1 END
		FROM generate_series(1, $1::bigint) AS n,
			LATERAL (SELECT n > $1 - 5 AS last) AS marks,
			LATERAL (SELECT now() - CASE WHEN last THEN interval '1 second' * ($1 - n)
				ELSE interval '30 days' * (1 - n / $1::float8) END AS at) AS times`, messages)
	return err
}

// fillOutbox adds waiting messages.
func fillOutbox(ctx context.Context, db *database, messages int) error {
	_, err := db.ExecContext(ctx, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
		SELECT 'm' || n, 'others', n % 64, '', '{}' FROM generate_series(1, $1::bigint) AS n`, messages)
	return errors.Join(err, vacuum(ctx, db, "once_outbox"))
}

func fillBacklogs(ctx context.Context, db *database, consumers int) error {
	_, err := db.ExecContext(ctx, `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		SELECT 'consumer-' || c, 'topic', 'backlog-' || c || '-' || n, '', '', 'waiting', now()
		FROM generate_series(1, $1::bigint) AS c, generate_series(1, $2::bigint) AS n`, consumers, backlog)
	return errors.Join(err, vacuum(ctx, db, "once_parked"))
}

func vacuum(ctx context.Context, db *database, tables ...string) error {
	for _, table := range tables {
		if _, err := db.ExecContext(ctx, `VACUUM ANALYZE `+table); err != nil {
			return err
		}
	}
	_, err := db.ExecContext(ctx, `CHECKPOINT`)
	return err
}
