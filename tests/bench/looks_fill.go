package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/trace"
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
		`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, fingerprint,
			unknown, tenant, aggregate_type)
		 SELECT n, 'dead-' || n, 'others', convert_to(repeat('x', 300), 'UTF8'), '{}', now(), 20, 'cause ' || ` + cause + `, 'exhausted',
			md5((` + cause + `)::text), false,
			'tenant-' || n % 1000, 'type-' || n % 20
		 FROM generate_series(1, $1::bigint) AS n`,
		`UPDATE once_outbox_dead SET tenant = '` + mark + `', aggregate_type = '` + mark + `', last_error = '` + mark + `',
			fingerprint = '` + mark + `', died_at = now() + interval '1 year' WHERE id > $1 - 5`,
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

// newSearches returns searches for the few rows that fillEntries marks.
func newSearches(entries *quarantine.Entries, letters *dead.Letters, log *dead.SentLog) []look {
	entry := func(f operate.Filter) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			found, err := entries.List(ctx, f)
			return expect(len(found.Rows), marked, err)
		}
	}
	letter := func(f operate.Filter) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			found, err := letters.List(ctx, f)
			return expect(len(found.Rows), marked, err)
		}
	}
	sent := func(f operate.Filter, want int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			page, err := log.List(ctx, f)
			return expect(len(page.Rows), want, err)
		}
	}
	future := time.Now().Add(aYear / 2)
	return []look{
		{"quarantine-tenant", "the entries of a tenant with few of them", entry(operate.Filter{Tenant: mark})},
		{"quarantine-event", "the entries of an event type with few of them", entry(operate.Filter{EventType: mark})},
		{"quarantine-time", "the entries that failed after a time, with few of them", entry(operate.Filter{FailedAfter: future})},
		{"quarantine-tenant-groups", "the groups of that tenant", func(ctx context.Context) error {
			listed, err := entries.Groups(ctx, operate.Filter{Tenant: mark})
			return expect(len(listed.Groups), 3, err)
		}},
		{"quarantine-type", "the entries of an aggregate type with few of them", entry(operate.Filter{AggregateType: mark})},
		{"quarantine-error", "the entries of an error type with few of them", entry(operate.Filter{ErrorType: mark})},
		{"dead-type", "the dead letters of an aggregate type with few of them", letter(operate.Filter{AggregateType: mark})},
		{"sent-none", "a page of the sent log for a tenant without messages", sent(operate.Filter{Tenant: "none"}, 0)},
		{"sent-aggregate", "the sent messages of an aggregate", sent(operate.Filter{AggregateID: mark}, marked)},
		{
			"sent-time", "the sent messages of a tenant and the last hour",
			sent(operate.Filter{Tenant: mark, SentAfter: time.Now().Add(-time.Hour)}, marked),
		},
		{"dead-tenant", "the dead letters of a tenant with few of them", letter(operate.Filter{Tenant: mark})},
		{"dead-group", "the dead letters of a group with few of them", letter(operate.Filter{Fingerprint: mark})},
		{"dead-time", "the dead letters of a time with few of them", letter(operate.Filter{FailedAfter: future})},
	}
}

// newWideSearches returns searches in which each condition matches very many rows.
func newWideSearches(entries *quarantine.Entries, letters *dead.Letters) []look {
	both := operate.Filter{Fingerprint: "cfcd208495d565ef66e7dff9f98764da", EventType: "event-1"} // the MD5 sum of cause 0
	return []look{
		{
			"quarantine-two", "the entries of a group with half of them and an event type with a tenth, which no entry has both",
			func(ctx context.Context) error {
				page, err := entries.List(ctx, both)
				return expect(len(page.Rows), 0, err)
			},
		},
		{"quarantine-two-groups", "the groups of these two", func(ctx context.Context) error {
			page, err := entries.Groups(ctx, both)
			return expect(len(page.Groups), 0, err)
		}},
		{
			"dead-two", "the dead letters of a group with half of them and an aggregate type with a 20th, which no letter has both",
			func(ctx context.Context) error {
				page, err := letters.List(ctx, operate.Filter{Fingerprint: "cfcd208495d565ef66e7dff9f98764da", AggregateType: "type-1"})
				return expect(len(page.Rows), 0, err)
			},
		},
		{"dead-since", "the dead letters since a time before all of them", func(ctx context.Context) error {
			page, err := letters.List(ctx, operate.Filter{FailedAfter: time.Now().Add(-aYear)})
			return expect(len(page.Rows), 100, err)
		}},
		{"dead-count", "a part of the count of the dead letters", func(ctx context.Context) error {
			_, err := letters.Count(ctx, operate.Filter{})
			return err
		}},
	}
}

func (o *operator) traces(entries int) []look {
	find := func(q trace.Query, want int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			found, err := o.finder.Find(ctx, q)
			return expect(len(found.Messages), want, err)
		}
	}
	first := fmt.Sprintf("sent-%d", entries-marked)
	return []look{
		{"trace", "a trace of a message in quarantine", find(trace.Query{MessageID: mark}, 1)},
		{
			"trace-causes", "a trace of a sent message and of the five that it caused, one by the other",
			find(trace.Query{MessageID: first, Causes: true}, 1+marked),
		},
		{"trace-popular", "a trace of a message that caused half of the sent log", find(trace.Query{MessageID: popular, Causes: true}, 100)},
		{"trace-tenant", "a trace of a tenant", find(trace.Query{Tenant: mark}, 3*marked)},
		{"trace-aggregate", "a trace of an aggregate", find(trace.Query{AggregateID: mark}, marked)},
	}
}
