-- Roles for the parts of a service, each with what its statements need and no
-- more. Run it after the migrations and after every later one, as the owner of
-- the tables. It can be repeated. Logins are made members of the roles.

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

-- What an earlier version of this text granted goes.
REVOKE ALL ON {migrations}, {outbox}, {blocked_keys}, {pauses}, {outbox_dead}, {outbox_sent}, {forwarders}, {slots},
              {inbox}, {versions}, {parked}, {parked_messages}, {consumers}, {consumer_instances}, {audit}, {replays}, {reconciliations},
              {idempotency_keys}
FROM PUBLIC, {role producer}, {role forwarder}, {role consumer}, {role operator}, {role watcher};
REVOKE ALL ON SEQUENCE {outbox_position}
FROM PUBLIC, {role producer}, {role forwarder}, {role consumer}, {role operator}, {role watcher};

-- schema.Check.
GRANT SELECT ON {migrations} TO {role producer}, {role forwarder}, {role consumer}, {role operator}, {role watcher};

-- The producer can neither read nor take back what it has published, nor say
-- where it stands.
GRANT INSERT (topic, message_id, ordering_key, slot, payload, metadata, due_at) ON {outbox} TO {role producer};
GRANT USAGE ON SEQUENCE {outbox_position} TO {role producer};

-- A producer that answers HTTP requests also stores their keys and answers.
GRANT SELECT, INSERT, DELETE, UPDATE (status, header, body) ON {idempotency_keys} TO {role producer};

-- The forwarder cannot add messages, or change them: all that it updates is
-- when and how often they were tried. Of what is dead or sent it sees no
-- content.
GRANT SELECT, DELETE ON {outbox} TO {role forwarder};
GRANT UPDATE (due_at, attempts, unknown, last_error, failing_since) ON {outbox} TO {role forwarder};
GRANT SELECT, INSERT, DELETE ON {blocked_keys} TO {role forwarder};
GRANT UPDATE (position, successors_after, reason) ON {blocked_keys} TO {role forwarder};
GRANT INSERT, SELECT (position, ordering_key) ON {outbox_dead} TO {role forwarder};
GRANT INSERT, DELETE, SELECT (id, sent_at) ON {outbox_sent} TO {role forwarder};
GRANT SELECT, INSERT, DELETE ON {forwarders} TO {role forwarder};
GRANT UPDATE (lease_until) ON {forwarders} TO {role forwarder};
GRANT SELECT ON {slots}, {pauses} TO {role forwarder};
GRANT UPDATE (owner, lease_until) ON {slots} TO {role forwarder};

-- The consumer. Rows of the inbox are never updated: retention locks them
-- before it deletes them, which wants that right on some column. One that
-- produces events, or copies of its quarantine, is a producer besides.
GRANT SELECT, INSERT, DELETE, UPDATE (tenant) ON {inbox} TO {role consumer};
GRANT SELECT, INSERT, DELETE ON {versions} TO {role consumer};
GRANT UPDATE (version, complete_from, applied_at) ON {versions} TO {role consumer};
GRANT SELECT, INSERT, DELETE ON {parked} TO {role consumer};
GRANT UPDATE (envelope, ordering_key, state, priority_class, due_at, owner, token, attempts, rounds, crashes,
              early_since, early_of, early_version, reason, error, error_type, fingerprint, dedup_key,
              first_failed_at, last_failed_at, finished_at) ON {parked} TO {role consumer};
GRANT SELECT (id, state) ON {replays} TO {role consumer};
GRANT SELECT, INSERT, DELETE, UPDATE (embedded, key_order, program, handler, owner, seen_at) ON {consumers} TO {role consumer};
GRANT SELECT, INSERT, DELETE, UPDATE (program, handler, seen_at) ON {consumer_instances} TO {role consumer};

-- The operator: what is pending, in quarantine, dead, or was sent. It cannot
-- change what a message says, but put another in its place; nor what the audit
-- has, or the time that this was at. The right to update a created_at, or the
-- lease of a slot, is for locks alone, and so is that on the whole of the replays.
GRANT SELECT, INSERT ON {parked} TO {role operator};
GRANT SELECT ON {parked_messages} TO {role operator};
GRANT UPDATE (ordering_key, state, priority_class, due_at, owner, token, attempts, rounds, crashes, replays, replay_id,
              early_since, early_of, early_version, reason, error, error_type, fingerprint,
              first_failed_at, last_failed_at, finished_at) ON {parked} TO {role operator};
GRANT SELECT (message_id, consumer, processed_at, tenant), INSERT, DELETE ON {inbox} TO {role operator};
GRANT SELECT, INSERT, UPDATE ON {replays} TO {role operator};
GRANT SELECT ON {forwarders}, {versions} TO {role operator};
GRANT SELECT, DELETE ON {consumers}, {consumer_instances} TO {role operator};
GRANT SELECT, DELETE, UPDATE (created_at),
      INSERT (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts, last_error, reason, unknown,
              tenant, aggregate_type, aggregate_id, event_type, causation_id)
    ON {outbox_dead} TO {role operator};
GRANT SELECT, UPDATE (created_at) ON {outbox_sent} TO {role operator};
GRANT SELECT, DELETE, UPDATE (due_at), INSERT (message_id, topic, ordering_key, slot, payload, metadata, unknown)
    ON {outbox} TO {role operator};
GRANT SELECT, UPDATE (lease_until) ON {slots} TO {role operator};
GRANT USAGE ON SEQUENCE {outbox_position} TO {role operator};
GRANT SELECT, INSERT (kind, name, actor, why), DELETE ON {pauses} TO {role operator};
GRANT SELECT, DELETE ON {blocked_keys} TO {role operator};
GRANT UPDATE (position, successors_after, reason) ON {blocked_keys} TO {role operator};
GRANT SELECT, INSERT (actor, action, subject, consumer, message_id, why, replay_id) ON {audit} TO {role operator};
GRANT SELECT, DELETE, INSERT (consumer, missing, phantoms, report) ON {reconciliations} TO {role operator};

-- The watcher sees everything but contents: no payload, digest or metadata, and
-- no text of an error, in which a handler or a broker may have quoted them.
GRANT SELECT (position, message_id, topic, ordering_key, slot, created_at, due_at, attempts, unknown, failing_since)
    ON {outbox} TO {role watcher};
GRANT SELECT ON {blocked_keys}, {pauses}, {forwarders}, {slots}, {versions}, {consumers}, {consumer_instances}, {audit}, {reconciliations} TO {role watcher};
GRANT SELECT (id, position, message_id, topic, ordering_key, created_at, attempts, reason, unknown, died_at,
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
