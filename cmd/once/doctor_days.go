package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// days checks the tables with the layout by_day. It checks whether their owner can
// create, empty and drop the partitions, and whether a process does this each day.
func (d *doctor) days(ctx context.Context) ([]finding, error) {
	found, err := d.daysOf(ctx, "inbox", "inbox_", "inbox", "Run a service with once.Consumer, or once sweep from cron, with the login %s")
	if err != nil {
		return nil, err
	}
	more, err := d.daysOf(ctx, "outbox_sent", "sent_", "sent log", "Run once sweep --keep-sent from cron, or a forwarder, with the login %s")
	return append(found, more...), err
}

// daysOf checks one table. The names of its partitions begin with the parameter prefix.
// The findings contain the other two parameters: title is the name of the table, and
// howToSweep says how to sweep the table as its owner.
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
