-- Roles for the parts of a service. Each role has only the rights that the statements
-- of its part need. Run this text as the owner of the tables, after the migrations and
-- again after every later migration. You may run it repeatedly. Make your login roles
-- members of these roles.

DO $$
DECLARE
    part text;
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{outbox}'::regclass);
BEGIN
    FOREACH part IN ARRAY ARRAY['{role producer}', '{role forwarder}', '{role consumer}', '{role operator}', '{role watcher}'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE '"' || rolname || '"' = part) THEN
            EXECUTE format('CREATE ROLE %s NOLOGIN', part);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s', home, part);
    END LOOP;
END $$;

-- Revoke what an earlier version of this text has granted.
REVOKE ALL ON {migrations}, {outbox}, {blocked_keys}, {pauses}, {outbox_dead}, {outbox_sent}, {forwarders}, {slots},
              {inbox}, {versions}, {parked}, {parked_messages}, {consumers}, {consumer_instances}, {consumer_pauses}, {consumer_limits},
              {audit}, {replays},
              {reconciliations}, {idempotency_keys}
FROM PUBLIC, {role producer}, {role forwarder}, {role consumer}, {role operator}, {role watcher};
REVOKE ALL ON SEQUENCE {outbox_position}
FROM PUBLIC, {role producer}, {role forwarder}, {role consumer}, {role operator}, {role watcher};

-- All parts call schema.Check, which reads this table.
GRANT SELECT ON {migrations} TO {role producer}, {role forwarder}, {role consumer}, {role operator}, {role watcher};

-- The producer can neither read nor delete the messages that it has published, and
-- cannot choose their positions.
GRANT INSERT (topic, message_id, ordering_key, slot, payload, metadata, due_at) ON {outbox} TO {role producer};
GRANT USAGE ON SEQUENCE {outbox_position} TO {role producer};

-- A producer that answers HTTP requests also stores their keys and answers.
GRANT SELECT, INSERT, DELETE, UPDATE (status, header, body) ON {idempotency_keys} TO {role producer};

-- The forwarder cannot add messages or change their contents. It updates only the
-- times, the number and the errors of the attempts. It cannot read the contents of dead
-- letters and of the sent log.
GRANT SELECT, DELETE ON {outbox} TO {role forwarder};
GRANT SELECT ON SEQUENCE {outbox_position} TO {role forwarder};
GRANT UPDATE (due_at, attempts, unknown, last_error, failing_since) ON {outbox} TO {role forwarder};
GRANT SELECT, INSERT, DELETE ON {blocked_keys} TO {role forwarder};
GRANT UPDATE (position, successors_after, reason) ON {blocked_keys} TO {role forwarder};
GRANT INSERT, SELECT (id, position, ordering_key) ON {outbox_dead} TO {role forwarder};
GRANT INSERT, DELETE, SELECT (id, sent_at) ON {outbox_sent} TO {role forwarder};
GRANT SELECT, INSERT, DELETE ON {forwarders} TO {role forwarder};
GRANT UPDATE (lease_until) ON {forwarders} TO {role forwarder};
GRANT SELECT ON {slots}, {pauses} TO {role forwarder};
GRANT UPDATE (owner, lease_until) ON {slots} TO {role forwarder};

-- The consumer. It never updates rows of the inbox. But retention locks rows before it
-- deletes them, and a lock needs the right to update some column. A consumer that
-- publishes events, or copies of quarantined messages, also needs the role of the
-- producer.
GRANT SELECT, INSERT, DELETE, UPDATE (tenant) ON {inbox} TO {role consumer};
GRANT SELECT, INSERT, DELETE ON {versions} TO {role consumer};
GRANT UPDATE (version, complete_from, applied_at) ON {versions} TO {role consumer};
GRANT SELECT, INSERT, DELETE ON {parked} TO {role consumer};
GRANT UPDATE (envelope, ordering_key, state, priority_class, due_at, owner, token, attempts, rounds, crashes,
              early_since, early_of, early_version, reason, error, error_type, fingerprint, stack, dedup_key,
              first_failed_at, last_failed_at, finished_at) ON {parked} TO {role consumer};
GRANT SELECT (id, state) ON {replays} TO {role consumer};
GRANT SELECT, INSERT, DELETE, UPDATE (embedded, key_order, program, handler, owner, seen_at) ON {consumers} TO {role consumer};
GRANT SELECT, INSERT, DELETE, UPDATE (program, handler, seen_at, failing_since) ON {consumer_instances} TO {role consumer};

-- A consumer with a breaker pauses itself, and writes this to the audit.
GRANT SELECT, INSERT (topic, consumer, actor, why, probe_at, fingerprint), DELETE, UPDATE (probe_at, probes, prober)
    ON {consumer_pauses} TO {role consumer};
GRANT INSERT (actor, action, subject, consumer, why) ON {audit} TO {role consumer};

-- Its instances share a limit, which only the operator can set.
GRANT SELECT, INSERT (topic, consumer, given_until, given), UPDATE (given_until, given, given_since)
    ON {consumer_limits} TO {role consumer};

-- The operator works on pending messages, quarantined messages, dead letters and the
-- sent log. It cannot change the content of a message, but can replace the message by
-- another one. It cannot change rows of the audit or their times. The rights to update
-- created_at, the lease of a slot, and all columns of the replays are only needed for
-- locks.
GRANT SELECT, INSERT ON {parked} TO {role operator};
GRANT SELECT ON {parked_messages} TO {role operator};
GRANT UPDATE (ordering_key, state, priority_class, due_at, owner, token, attempts, rounds, crashes, replays, replay_id,
              early_since, early_of, early_version, reason, error, error_type, fingerprint, stack,
              first_failed_at, last_failed_at, finished_at) ON {parked} TO {role operator};
GRANT SELECT (message_id, consumer, processed_at, tenant), INSERT, DELETE ON {inbox} TO {role operator};
GRANT SELECT, INSERT, UPDATE ON {replays} TO {role operator};
GRANT SELECT ON {forwarders}, {versions} TO {role operator};
GRANT SELECT, DELETE ON {consumers}, {consumer_instances} TO {role operator};
GRANT SELECT, INSERT (topic, consumer, actor, why), DELETE, UPDATE (actor, why, paused_at, probe_at, probes, prober, fingerprint)
    ON {consumer_pauses} TO {role operator};
GRANT SELECT, INSERT (topic, consumer, per_second, burst, actor, why, set_at), DELETE,
      UPDATE (per_second, burst, actor, why, set_at, given_until) ON {consumer_limits} TO {role operator};
GRANT SELECT, DELETE, UPDATE (created_at),
      INSERT (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts, last_error, reason, fingerprint, unknown,
              tenant, aggregate_type, aggregate_id, event_type, causation_id)
    ON {outbox_dead} TO {role operator};
GRANT SELECT, UPDATE (created_at) ON {outbox_sent} TO {role operator};
GRANT SELECT, DELETE, UPDATE (due_at), INSERT (message_id, topic, ordering_key, slot, payload, metadata, unknown)
    ON {outbox} TO {role operator};
GRANT SELECT, UPDATE (lease_until) ON {slots} TO {role operator};
GRANT USAGE, SELECT ON SEQUENCE {outbox_position} TO {role operator};
GRANT SELECT, INSERT (kind, name, actor, why), DELETE ON {pauses} TO {role operator};
GRANT SELECT, DELETE ON {blocked_keys} TO {role operator};
GRANT UPDATE (position, successors_after, reason) ON {blocked_keys} TO {role operator};
GRANT SELECT, INSERT (actor, action, subject, consumer, message_id, why, replay_id) ON {audit} TO {role operator};
GRANT SELECT, DELETE, INSERT (consumer, missing, phantoms, report) ON {reconciliations} TO {role operator};

-- The watcher can read everything except contents: no payload, digest or metadata, and
-- no error text, because a handler or a broker may have quoted contents in it.
GRANT SELECT (position, message_id, topic, ordering_key, slot, created_at, due_at, attempts, unknown, failing_since)
    ON {outbox} TO {role watcher};
GRANT SELECT ON SEQUENCE {outbox_position} TO {role watcher};
GRANT SELECT ON {blocked_keys}, {pauses}, {forwarders}, {slots}, {versions}, {consumers}, {consumer_instances}, {consumer_pauses},
                {consumer_limits}, {audit}, {reconciliations} TO {role watcher};
GRANT SELECT (id, position, message_id, topic, ordering_key, created_at, attempts, reason, fingerprint, unknown, died_at,
              tenant, aggregate_type, aggregate_id, event_type, causation_id)
    ON {outbox_dead} TO {role watcher};
GRANT SELECT (id, position, message_id, topic, ordering_key, created_at, sent_at,
              tenant, aggregate_type, aggregate_id, event_type, causation_id) ON {outbox_sent} TO {role watcher};
GRANT SELECT (message_id, consumer, processed_at, tenant) ON {inbox} TO {role watcher};
GRANT SELECT (id, consumer, topic, message_id, ordering_key, tenant, aggregate_type, aggregate_id, event_type, causation_id, state, priority_class, due_at, token, owner, attempts, rounds, crashes,
              replays, replay_id, edited_from, origin, early_since, early_of, early_version, reason, error_type,
              fingerprint, created_at, first_failed_at, last_failed_at, finished_at) ON {parked} TO {role watcher};
GRANT SELECT (id, source, consumer, filter, plan, actor, why, state, stop_reason, total, until_id, after_id, replayed,
              resolved, failed, stale, lease_until, started_at, ended_at) ON {replays} TO {role watcher};
GRANT SELECT (client, status, created_at) ON {idempotency_keys} TO {role watcher};
