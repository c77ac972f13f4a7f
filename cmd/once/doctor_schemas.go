package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/schema"
)

// schemas looks for other schemas with tables of the same prefix: a service with another search
// path may write its events there, where a forwarder with this one does not send them.
func (d *doctor) schemas(ctx context.Context) ([]finding, error) {
	here, err := schema.Find(ctx, d.db.DB, d.db.tables)
	if err != nil {
		return nil, err
	}
	found, err := d.shadowed(ctx, here.Schema)
	if err != nil {
		return nil, err
	}
	others, err := d.otherSchemas(ctx, here)
	if err != nil {
		return found, err
	}
	for _, other := range others {
		if !other.readable {
			d.skip("the outbox in schema " + other.name + ": this login may not read it")
			continue
		}
		var waits, forwarded bool
		err := d.db.QueryRowContext(ctx, fmt.Sprintf(`
			SELECT EXISTS (SELECT position FROM %s), EXISTS (SELECT owner FROM %s WHERE lease_until > now())`,
			other.outbox, other.forwarders)).Scan(&waits, &forwarded)
		if err != nil {
			return found, err
		}
		if waits && !forwarded {
			found = append(found, finding{
				What: fmt.Sprintf("Schema %s also contains an outbox with the prefix %q. It has messages, and no forwarder sends them.",
					other.name, here.Prefix),
				Why: fmt.Sprintf("A service whose search path leads to that schema writes its events there. "+
					"A forwarder of schema %s does not read them.", here.Schema),
				Do: "Set the same schema.Config.Schema in all parts, or start a forwarder with --schema " + other.name + ".",
			})
		}
	}
	return found, nil
}

func (d *doctor) shadowed(ctx context.Context, here string) ([]finding, error) {
	if d.db.tables.Schema != "" {
		return nil, nil
	}
	var first string
	if err := d.db.QueryRowContext(ctx, `SELECT current_schema()`).Scan(&first); err != nil || first == here {
		return nil, err
	}
	return []finding{{
		What: fmt.Sprintf("The tables are in schema %s, but %s is the first schema of this login's search path.", here, first),
		Why:  "schema.Up refuses to work, because it would create a second, empty set of tables. A service that calls it does not start.",
		Do:   fmt.Sprintf("Set schema.Config.Schema to %q in all parts, or ALTER ROLE ... SET search_path = %[1]s", here),
	}}, nil
}

// The names are quoted for SQL.
type otherSchema struct {
	name, outbox, forwarders string
	readable                 bool
}

func (d *doctor) otherSchemas(ctx context.Context, here schema.Config) (all []otherSchema, err error) {
	rows, err := d.db.QueryContext(ctx, `
		SELECT quote_ident(nspname), o.oid::regclass::text, f.oid::regclass::text,
		       has_schema_privilege(s.oid, 'USAGE') AND has_column_privilege(o.oid, 'position', 'SELECT') AND has_table_privilege(f.oid, 'SELECT')
		FROM pg_namespace AS s
		JOIN pg_class AS o ON o.relnamespace = s.oid AND o.relname = $1 AND o.relkind = 'r'
		JOIN pg_class AS f ON f.relnamespace = s.oid AND f.relname = $2 AND f.relkind = 'r'
		WHERE nspname <> $3 ORDER BY nspname LIMIT 20`, here.Prefix+"outbox", here.Prefix+"forwarders", here.Schema)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s otherSchema
		if err := rows.Scan(&s.name, &s.outbox, &s.forwarders, &s.readable); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

func (d *doctor) durability(ctx context.Context) ([]finding, error) {
	err := schema.Durability(ctx, d.db.DB, d.db.tables)
	if !errors.Is(err, schema.ErrNotDurable) {
		return nil, err
	}
	return []finding{{
		What: err.Error(),
		Why:  "A message is acked after its commit. If a crash of the server loses the commit, the message's effect is lost.",
		Do:   "Change the setting that the text names, for the database or for the logins of the services.",
	}}, nil
}

var parts = []string{"producer", "forwarder", "consumer", "operator", "watcher"}

func (d *doctor) rights(ctx context.Context) (found []finding, err error) {
	for _, role := range d.roles {
		err := schema.CheckRights(ctx, d.db.DB, d.db.tables, role)
		if errors.Is(err, schema.ErrRights) {
			found = append(found, finding{
				What: err.Error(),
				Why:  "A service with this login fails as soon as it needs the right.",
				Do:   "Run the SQL of once migrate roles as the owner of the tables, and make the login a member of the role " + role + ".",
			})
		} else if err != nil {
			return found, err
		}
	}
	return found, nil
}

// For the doctor's own login, schema.Check would have refused row level security.
func (d *doctor) rowSecurity(ctx context.Context) ([]finding, error) {
	here, err := schema.Find(ctx, d.db.DB, d.db.tables)
	if err != nil {
		return nil, err
	}
	var tables string
	err = d.db.QueryRowContext(ctx, `
		SELECT COALESCE(string_agg(relname, ', ' ORDER BY relname), '') FROM pg_class JOIN pg_namespace AS s ON s.oid = relnamespace
		WHERE nspname = $1 AND relname LIKE $2 || '%' AND relrowsecurity`, here.Schema, strings.ReplaceAll(here.Prefix, "_", `\_`)).Scan(&tables)
	if err != nil || tables == "" {
		return nil, err
	}
	return []finding{{
		What: fmt.Sprintf("Row level security is enabled on %s. It does not apply to this login, but to others.", tables),
		Why:  "Other logins may not see rows of these tables. PostgreSQL reports no error: messages wait forever, or are handled twice.",
		Do:   "ALTER TABLE ... DISABLE ROW LEVEL SECURITY, or ALTER ROLE ... BYPASSRLS for the logins of the services.",
	}}, nil
}

// days checks whether the owner of tables by day can create, empty and drop partitions, and a
// process does this each day.
func (d *doctor) days(ctx context.Context) ([]finding, error) {
	found, err := d.daysOf(ctx, "inbox", "inbox_", "inbox", "Run a service with once.Consumer, or once sweep from cron, with the login %s")
	if err != nil {
		return nil, err
	}
	more, err := d.daysOf(ctx, "outbox_sent", "sent_", "sent log", "Run once sweep --keep-sent from cron, or a forwarder, with the login %s")
	return append(found, more...), err
}

func (d *doctor) daysOf(ctx context.Context, table, prefix, title, howToSweep string) (found []finding, err error) {
	var owner, schema, database, foreign string
	var create, temporary, swept bool
	err = d.db.QueryRowContext(ctx, `
		WITH whole AS (SELECT oid, relowner, relnamespace FROM pg_class WHERE oid = to_regclass($1) AND relkind = 'p'),
		     parts AS (SELECT p.relname, p.relowner FROM whole AS i JOIN pg_inherits AS h ON h.inhparent = i.oid
		               JOIN pg_class AS p ON p.oid = h.inhrelid)
		SELECT quote_ident(pg_get_userbyid(relowner)), relnamespace::regnamespace::text, quote_ident(current_database()),
		       has_schema_privilege(relowner, relnamespace, 'CREATE'),
		       has_database_privilege(relowner, current_database(), 'TEMPORARY'),
		       EXISTS (SELECT FROM parts WHERE relname > $2 || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD') AND relname ~ '_[0-9]{8}$'),
		       COALESCE((SELECT string_agg(quote_ident(relname), ', ' ORDER BY relname) FROM parts
		                 WHERE NOT pg_has_role(whole.relowner, parts.relowner, 'USAGE')), '')
		FROM whole`, d.db.table(table), d.db.tables.Prefix+prefix).
		Scan(&owner, &schema, &database, &create, &temporary, &swept, &foreign)
	if errors.Is(err, sql.ErrNoRows) { // the layout is plain
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !create {
		found = append(found, finding{
			What: fmt.Sprintf("The owner of the %s, %s, may not create tables in schema %s.", title, owner, schema),
			Why:  "The sweep cannot create the partitions of coming days. Rows go to the default partition, and are deleted one by one.",
			Do:   fmt.Sprintf("GRANT USAGE, CREATE ON SCHEMA %s TO %s", schema, owner),
		})
	}
	if !temporary && table == "inbox" {
		found = append(found, finding{
			What: fmt.Sprintf("The owner of the inbox, %s, may not create temporary tables in database %s.", owner, database),
			Why: "While the sweep empties a day, it copies the rows that must stay to a temporary table. Without this right, it empties and drops " +
				"no day, and the inbox grows.",
			Do: fmt.Sprintf("GRANT TEMPORARY ON DATABASE %s TO %s", database, owner),
		})
	}
	if foreign != "" {
		found = append(found, finding{
			What: fmt.Sprintf("Partitions of the %s do not belong to its owner, %s: %s.", title, owner, foreign),
			Why:  "The sweep cannot empty or drop them.",
			Do:   fmt.Sprintf("For each of them: ALTER TABLE %s OWNER TO %s", strings.Split(foreign, ", ")[0], owner),
		})
	}
	if !swept {
		found = append(found, finding{
			What: fmt.Sprintf("The %s by day has no partition for a coming day.", title),
			Why:  "No process sweeps it as its owner, so no partition is created or dropped, and the table grows.",
			Do:   fmt.Sprintf(howToSweep+" or a member of it. Its log says what failed.", owner),
		})
	}
	return found, nil
}
