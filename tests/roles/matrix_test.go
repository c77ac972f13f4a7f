package roles

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// may lists the rights of each role on each table, in the order of the variable rights.
// A role has no right on other tables.
var may = map[string]map[string]string{
	"producer": {
		"migrations": "SELECT",
		"outbox":     "INSERT(due_at message_id metadata ordering_key payload slot topic)",

		"idempotency_keys": "SELECT, INSERT, UPDATE(body header status), DELETE",
	},
	"forwarder": {
		"migrations":   "SELECT",
		"outbox":       "SELECT, UPDATE(attempts due_at failing_since last_error unknown), DELETE",
		"blocked_keys": "SELECT, INSERT, UPDATE(position reason successors_after), DELETE",
		"pauses":       "SELECT",
		"outbox_dead":  "SELECT(id ordering_key position), INSERT",
		"outbox_sent":  "SELECT(id sent_at), INSERT, DELETE",
		"forwarders":   "SELECT, INSERT, UPDATE(lease_until), DELETE",
		"slots":        "SELECT, UPDATE(lease_until owner)",
	},
	"consumer": {
		"migrations": "SELECT",
		"inbox":      "SELECT, INSERT, UPDATE(tenant), DELETE",
		"versions":   "SELECT, INSERT, UPDATE(applied_at complete_from version), DELETE",
		"parked": "SELECT, INSERT, UPDATE(attempts crashes dedup_key due_at early_of early_since early_version envelope error error_type " +
			"fingerprint finished_at first_failed_at last_failed_at ordering_key owner priority_class reason rounds stack state token), DELETE",
		"replays":   "SELECT(id state)",
		"consumers": "SELECT, INSERT, UPDATE(embedded handler key_order owner program seen_at), DELETE",

		"consumer_instances": "SELECT, INSERT, UPDATE(failing_since handler program seen_at), DELETE",
		"consumer_limits":    "SELECT, INSERT(consumer given given_until topic), UPDATE(given given_since given_until)",
		"consumer_pauses":    "SELECT, INSERT(actor consumer fingerprint probe_at topic why), UPDATE(probe_at prober probes), DELETE",
		"audit":              "INSERT(action actor consumer subject why)",
	},
	"operator": {
		"migrations":   "SELECT",
		"outbox":       "SELECT, INSERT(message_id metadata ordering_key payload slot topic unknown), UPDATE(due_at), DELETE",
		"blocked_keys": "SELECT, UPDATE(position reason successors_after), DELETE",
		"pauses":       "SELECT, INSERT(actor kind name why), DELETE",
		"outbox_dead": "SELECT, INSERT(aggregate_id aggregate_type attempts causation_id created_at event_type fingerprint last_error " +
			"message_id metadata ordering_key payload position reason tenant topic unknown), UPDATE(created_at), DELETE",
		"slots":       "SELECT, UPDATE(lease_until)",
		"outbox_sent": "SELECT, UPDATE(created_at)",
		"inbox":       "SELECT(consumer message_id processed_at tenant), INSERT, DELETE",
		"parked": "SELECT, INSERT, UPDATE(attempts crashes due_at early_of early_since early_version error error_type fingerprint " +
			"finished_at first_failed_at last_failed_at ordering_key owner priority_class reason replay_id replays rounds stack state token)",
		"parked_messages": "SELECT",
		"reconciliations": "SELECT, INSERT(consumer missing phantoms report), DELETE",

		"forwarders": "SELECT",
		"versions":   "SELECT",

		"replays":   "SELECT, INSERT, UPDATE",
		"consumers": "SELECT, DELETE",
		"audit":     "SELECT, INSERT(action actor consumer message_id replay_id subject why)",

		"consumer_instances": "SELECT, DELETE",
		"consumer_limits": "SELECT, INSERT(actor burst consumer per_second set_at topic why), " +
			"UPDATE(actor burst given_until per_second set_at why), DELETE",
		"consumer_pauses": "SELECT, INSERT(actor consumer topic why), " +
			"UPDATE(actor fingerprint paused_at probe_at prober probes why), DELETE",
	},
	"watcher": {
		"migrations":   "SELECT",
		"outbox":       "SELECT(attempts created_at due_at failing_since message_id ordering_key position slot topic unknown)",
		"blocked_keys": "SELECT",
		"pauses":       "SELECT",
		"outbox_dead": "SELECT(aggregate_id aggregate_type attempts causation_id created_at died_at event_type fingerprint id " +
			"message_id ordering_key position reason tenant topic unknown)",
		"outbox_sent": "SELECT(aggregate_id aggregate_type causation_id created_at event_type id message_id ordering_key position sent_at " +
			"tenant topic)",
		"forwarders": "SELECT",
		"slots":      "SELECT",
		"inbox":      "SELECT(consumer message_id processed_at tenant)",
		"versions":   "SELECT",
		"consumers":  "SELECT",

		"consumer_instances": "SELECT",
		"consumer_limits":    "SELECT",
		"consumer_pauses":    "SELECT",
		"parked": "SELECT(aggregate_id aggregate_type attempts causation_id consumer crashes created_at due_at early_of early_since " +
			"early_version edited_from error_type event_type fingerprint finished_at first_failed_at id last_failed_at message_id " +
			"ordering_key origin owner priority_class reason replay_id replays rounds state tenant token topic)",
		"replays": "SELECT(actor after_id consumer ended_at failed filter id lease_until plan replayed resolved source stale started_at state " +
			"stop_reason total until_id why)",
		"audit":           "SELECT",
		"reconciliations": "SELECT",

		"idempotency_keys": "SELECT(client created_at status)",
	},
}

// ofPositions lists the rights on the sequence of positions.
var ofPositions = map[string]string{"producer": "USAGE", "forwarder": "SELECT", "operator": "USAGE, SELECT", "watcher": "SELECT"}

var rights = []string{"SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"}

// all returns all tables with their columns.
func (w *world) all() map[string][]string {
	w.Helper()
	rows, err := w.admin.QueryContext(w.Context(),
		`SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'app' ORDER BY 1, 2`)
	kit.OK(w, err)
	defer rows.Close()
	all := map[string][]string{}
	for rows.Next() {
		var table, column string
		kit.OK(w, rows.Scan(&table, &column))
		table = strings.TrimPrefix(table, tables.Prefix)
		all[table] = append(all[table], column)
	}
	kit.OK(w, rows.Err())
	return all
}

// has returns the rights of a user on a table.
func (w *world) has(user, table string, columns []string) string {
	w.Helper()
	ask := func(function string, args ...any) (yes bool) {
		query := `SELECT ` + function + `($1, $2, $3)`
		if len(args) == 4 {
			query = `SELECT ` + function + `($1, $2, $3, $4)`
		}
		kit.OK(w, w.admin.QueryRowContext(w.Context(), query, args...).Scan(&yes))
		return yes
	}
	name := tables.Table(table)
	var has []string
	for _, right := range rights {
		if ask("has_table_privilege", user, name, right) {
			has = append(has, right)
			continue
		}
		if right == "DELETE" || right == "TRUNCATE" || right == "TRIGGER" || !ask("has_any_column_privilege", user, name, right) {
			continue
		}
		some := slices.DeleteFunc(slices.Clone(columns), func(column string) bool {
			return !ask("has_column_privilege", user, name, column, right)
		})
		has = append(has, fmt.Sprintf("%s(%s)", right, strings.Join(some, " ")))
	}
	return strings.Join(has, ", ")
}

func TestRolesHaveNoOtherRights(t *testing.T) {
	w := newWorld(t)
	all := w.all()
	if len(all) != 20 {
		t.Fatalf("there are %d tables: list the rights on the new tables in may", len(all))
	}
	for _, part := range parts {
		for table, columns := range all {
			if got, want := w.has(w.login(part), table, columns), may[part][table]; got != want {
				t.Errorf("%s on %s has the rights %s\nwant %s", part, table, got, want)
			}
		}
	}
	for _, part := range parts {
		var may string
		err := w.admin.QueryRowContext(t.Context(), `SELECT concat_ws(', ', CASE WHEN has_sequence_privilege($1, $2, 'USAGE') THEN 'USAGE' END,
			CASE WHEN has_sequence_privilege($1, $2, 'SELECT') THEN 'SELECT' END,
			CASE WHEN has_sequence_privilege($1, $2, 'UPDATE') THEN 'UPDATE' END)`,
			w.login(part), tables.Table("outbox_position")).Scan(&may)
		if want := ofPositions[part]; err != nil || may != want {
			t.Errorf("%s has %q on the sequence, want %q: %v", part, may, want, err)
		}
	}
	for _, part := range parts {
		db := w.open(new(recorder), part)
		for table, columns := range all {
			w.attempt(db, part, table, columns[0])
		}
		for _, query := range []string{`CREATE TABLE app.mine (x int)`, `DROP TABLE app.mine_outbox`, `SET ROLE ` + w.login("owner")} {
			if _, err := db.ExecContext(t.Context(), query); !refused(err) && !strings.Contains(fmt.Sprint(err), "must be owner") {
				t.Errorf("%s: %s: %v", part, query, err)
			}
		}
	}
}

// attempt runs the statements that a role must not be able to run on a table.
func (w *world) attempt(db *sql.DB, part, table, column string) {
	w.Helper()
	name := tables.Table(table)
	for right, query := range map[string]string{
		"SELECT":   `SELECT ` + column + ` FROM ` + name,
		"INSERT":   `INSERT INTO ` + name + ` DEFAULT VALUES`,
		"UPDATE":   `UPDATE ` + name + ` SET ` + column + ` = DEFAULT`,
		"DELETE":   `DELETE FROM ` + name,
		"TRUNCATE": `TRUNCATE ` + name,
	} {
		if strings.Contains(may[part][table], right) {
			continue
		}
		if _, err := db.ExecContext(w.Context(), query); !refused(err) {
			w.Errorf("%s: %s: %v", part, query, err)
		}
	}
}

// Roles cannot run certain statements. The test names these statements, and does not use the lists
// above.
func TestRolesCannotRunForbiddenStatements(t *testing.T) {
	w := newWorld(t)
	for part, queries := range map[string][]string{
		"producer": {
			`SELECT payload FROM app.mine_outbox`, `DELETE FROM app.mine_outbox`,
			`INSERT INTO app.mine_outbox (position, message_id, topic, slot, payload, metadata) VALUES (1, '', '', 0, '', '{}')`,
		},
		"forwarder": {
			`UPDATE app.mine_outbox SET payload = ''`, `INSERT INTO app.mine_outbox DEFAULT VALUES`,
			`SELECT payload FROM app.mine_outbox_dead`, `SELECT 1 FROM app.mine_inbox`,
		},
		"consumer": {
			`UPDATE app.mine_inbox SET digest = ''`, `SELECT payload FROM app.mine_outbox`,
			`UPDATE app.mine_parked SET message_id = ''`, `SELECT 1 FROM app.mine_audit`, `INSERT INTO app.mine_audit (message_id) VALUES ('1')`,
		},
		"operator": {
			`UPDATE app.mine_audit SET why = ''`, `DELETE FROM app.mine_audit`, `INSERT INTO app.mine_audit (at) VALUES (now())`,
			`UPDATE app.mine_parked SET envelope = ''`, `DELETE FROM app.mine_parked`, `UPDATE app.mine_outbox_dead SET payload = ''`,
		},
		"watcher": {
			`SELECT payload FROM app.mine_outbox`, `SELECT metadata FROM app.mine_outbox_dead`, `SELECT last_error FROM app.mine_outbox`,
			`SELECT payload FROM app.mine_outbox_sent`, `SELECT envelope FROM app.mine_parked`, `SELECT error FROM app.mine_parked`,
			`SELECT digest FROM app.mine_inbox`, `SELECT * FROM app.mine_parked`,
		},
	} {
		db := w.open(new(recorder), part)
		for _, query := range queries {
			if _, err := db.ExecContext(t.Context(), query); !refused(err) {
				t.Errorf("%s: %s: %v", part, query, err)
			}
		}
	}
}

// The text of schema.Roles revokes rights that an earlier version of the text has granted.
func TestRolesRevokesOtherRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(w.admin, `GRANT ALL ON app.mine_audit TO `+w.prefix+`producer; GRANT UPDATE (why) ON app.mine_audit TO PUBLIC`)
	text, err := schema.Roles(tables, w.prefix)
	kit.OK(t, err)
	w.exec(w.admin, text)
	if got := w.has(w.login("producer"), "audit", w.all()["audit"]); got != "" {
		t.Errorf("the producer has %s", got)
	}
}

func TestRolesErrorNamesTheInvalidValue(t *testing.T) {
	for want, c := range map[string]struct {
		config schema.Config
		prefix string
	}{
		"no roles":                {schema.Config{Dialect: schema.SQLite}, ""},
		`role prefix "a b"`:       {schema.Config{}, "a b"},
		`role prefix "a\"; DROP"`: {schema.Config{}, `a"; DROP`},
		"is longer than 54":       {schema.Config{}, strings.Repeat("p", 55)},
		`schema: Schema "s'"`:     {schema.Config{Schema: "s'"}, ""},
	} {
		if text, err := schema.Roles(c.config, c.prefix); text != "" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	text, err := schema.Roles(schema.Config{Prefix: "a_"}, "")
	const grant = `GRANT USAGE ON SEQUENCE "a_outbox_position" TO "a_producer"`
	if err != nil || !strings.Contains(text, grant) || strings.ContainsAny(text, "{}") {
		t.Errorf("%v: %s", err, text)
	}
}
